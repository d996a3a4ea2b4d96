"""The selective scan: d_inner channels with d_state states each, and an output product that varies with time.

    h_t = lambda_bar_t h_{t-1} + u_t B_t,    y_t = C_t . h_t

The number of states is 2 d_state times the number of the layer's activations. So on a CPU the states are computed in pieces that
fit into the cache. Only the state before each piece is kept, and the backward pass recomputes the states of a piece. On other
devices, under torch.func or a compiler, and for second derivatives, `linear_scan` computes all states at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stablessm_core.numerics.differentiation import transformed
from stablessm_core.scan import linear_scan, resolve_backend
from stablessm_core.scan.autograd import is_unobserved

STEP = 1 << 14  # maximum number of states in one time step of a piece, which limits the number of batch rows
PIECE = 1 << 17  # maximum number of states in a piece, so that states, transitions and adjoints fit into a core's own cache
SHORTEST = 16  # minimum number of steps in a piece, so that few states are kept


def selective_scan(
    u: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    dt: Tensor | None = None,
    lambda_: Tensor | None = None,
    lambda_bar: Tensor | None = None,
    backend: str = "auto",
    pieces: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """y (batch, length, d_inner) and the states after the last step (batch, d_inner, d_state), which carry no gradient.

    u: (batch, length, d_inner). B, C: (batch, length, d_state), the same for all channels. The eigenvalues are either
    exp(dt_t lambda_), with dt in the shape of u and lambda_ (d_inner, d_state), or lambda_bar in the shape of B, shared by the
    channels. All arguments have the same dtype, float32 or float64. pieces: True computes the states in pieces, False all at
    once; None chooses between the two.
    backend: as in `linear_scan`, for computing all states at once.
    """
    if pieces is None:
        # to an observer of operators, the scan of all states is one operation, and pieces would be thousands
        hidden = transformed() or not is_unobserved(u)
        pieces = u.device.type == "cpu" and resolve_backend(backend, u.device) in ("cpu", "torch") and not hidden
    if not pieces:
        return _at_once(u, B, C, dt, lambda_, lambda_bar, backend)
    y, last = _InPieces.apply(u, B, C, dt, lambda_, lambda_bar, backend)  # type: ignore[no-untyped-call]
    return y, last


def _at_once(
    u: Tensor, B: Tensor, C: Tensor, dt: Tensor | None, lambda_: Tensor | None, lambda_bar: Tensor | None, backend: str
) -> tuple[Tensor, Tensor]:
    """`selective_scan` with all states at once. Channels come last, so that the products with C read adjacent numbers."""
    driven = u[:, :, None, :] * B[..., None]
    if lambda_bar is None:
        assert dt is not None
        assert lambda_ is not None
        transition = torch.exp(dt[:, :, None, :] * lambda_.t())
    else:
        transition = lambda_bar[..., None].expand_as(driven)
    h = linear_scan(transition.flatten(2), driven.flatten(2), backend=backend).view_as(driven)
    return (C[:, :, None, :] @ h).squeeze(2), h[:, -1].detach().transpose(1, 2).clone()


class _InPieces(torch.autograd.Function):
    """`selective_scan` in pieces. In the tensors of a piece, time is the first axis and channels are the last axis.

    Let g_t = C_t dy_t + lambda_bar_{t+1} g_{t+1} be the adjoint and q_t = lambda_bar_t h_{t-1} g_t. The gradients are

        du_t = B_t . g_t,   dB_t = sum over channels of u_t g_t,   dC_t = sum over channels of dy_t h_t,
        d lambda_bar_t = h_{t-1} g_t,   ddt_t = sum over states of lambda q_t,

    and d lambda = sum over batch and time of dt_t q_t.
    """

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        B: Tensor,
        C: Tensor,
        dt: Tensor | None,
        lambda_: Tensor | None,
        lambda_bar: Tensor | None,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        batch, length, d_inner = u.shape
        d_state = B.shape[2]
        rows, steps = _sizes(batch, d_inner * d_state)
        y = torch.empty_like(u, memory_format=torch.contiguous_format)
        before = u.new_empty(-(-length // steps), batch, d_state, d_inner)
        last = u.new_empty(batch, d_state, d_inner)
        rate = None if lambda_ is None else lambda_.t().contiguous()
        work = u.new_empty(2, min(steps, length), rows, d_state, d_inner)
        for at in _spans(batch, rows):
            here = _Rows(work, rate, *(_time_first(x, at) for x in (u, B, C, dt, lambda_bar)))
            y_here = torch.empty_like(here.u)
            state = u.new_zeros(here.u.shape[1], d_state, d_inner)
            for i, span in enumerate(_spans(length, steps)):
                before[i, at] = state
                _, h = here.states(span, state)
                torch.matmul(here.C[span, :, None], h, out=y_here[span].unsqueeze(2))
                state = h[-1].clone()
            y[at], last[at] = y_here.transpose(0, 1), state
        ctx.save_for_backward(u, B, C, dt, lambda_, lambda_bar, before)
        ctx.rows, ctx.steps, ctx.backend = rows, steps, backend
        last = last.transpose(1, 2).contiguous()
        ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        u, B, C, dt, lambda_, lambda_bar, before = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            y, _ = _at_once(u, B, C, dt, lambda_, lambda_bar, ctx.backend)
            needed = ctx.needs_input_grad[:6]
            wanted = [x for x, need in zip((u, B, C, dt, lambda_, lambda_bar), needed, strict=True) if need]
            found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
            return *(next(found) if need else None for need in needed), None
        batch, length, d_inner = u.shape
        gradients = [None if x is None else torch.empty_like(x) for x in (u, B, C, dt, lambda_bar)]
        rate, d_rate = None, None
        if lambda_ is not None:
            rate = lambda_.t().contiguous()
            d_rate = torch.zeros_like(rate)
        work = u.new_empty(3, min(ctx.steps, length), ctx.rows, B.shape[2], d_inner)
        for at in _spans(batch, ctx.rows):
            here = _Rows(work[:2], rate, *(_time_first(x, at) for x in (u, B, C, dt, lambda_bar)))
            spans = list(_spans(length, ctx.steps))
            parts, d_rate_here = here.gradients(work[2], dy[at].transpose(0, 1).contiguous(), before[:, at], spans)
            for gradient, part in zip(gradients, parts, strict=True):
                if gradient is not None and part is not None:
                    gradient[at] = part.transpose(0, 1)
            if d_rate is not None:
                d_rate += d_rate_here
        du, dB, dC, ddt, d_lambda_bar = gradients
        return du, dB, dC, ddt, None if d_rate is None else d_rate.t(), d_lambda_bar, None


class _Rows:
    """Some rows of the batch, with time first: u, dt (length, rows, d_inner), B, C, lambda_bar (length, rows, d_state).

    work: (2, steps, rows, d_state, d_inner), a buffer for the transitions and states of a piece. rate: (d_state, d_inner).
    """

    def __init__(
        self, work: Tensor, rate: Tensor | None, u: Tensor, B: Tensor, C: Tensor, dt: Tensor | None, lambda_bar: Tensor | None
    ) -> None:
        self.work, self.rate = work, rate
        self.u, self.B, self.C, self.dt, self.lambda_bar = u, B, C, dt, lambda_bar

    def states(self, span: slice, state: Tensor) -> tuple[Tensor, Tensor]:
        """Transitions and states of the steps in `span`; their shapes are, or broadcast to, (steps, rows, d_state, d_inner)."""
        u = self.u[span]
        a, h = self.work[:, : len(u), : u.shape[1]]
        if self.lambda_bar is None:
            assert self.dt is not None
            assert self.rate is not None
            torch.mul(self.dt[span, :, None], self.rate, out=a).exp_()
        else:
            a = self.lambda_bar[span, :, :, None]
        torch.mul(u[:, :, None], self.B[span, :, :, None], out=h)
        for a_t, h_t in zip(a.unbind(), h.unbind(), strict=True):
            state = h_t.addcmul_(a_t, state)
        return a, h

    def gradients(
        self, work: Tensor, dy: Tensor, before: Tensor, spans: list[slice]
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]:
        """The gradients of u, B, C, dt and lambda_bar, and the gradient of `rate`.

        work: (steps, rows, d_state, d_inner), a buffer for the adjoints. before: the state before each of `spans`.
        """
        du, dB, dC = (torch.empty_like(x) for x in (self.u, self.B, self.C))
        ddt, d_lambda_bar = (None if x is None else torch.empty_like(x) for x in (self.dt, self.lambda_bar))
        d_rate = torch.zeros_like(before[0])
        after = torch.zeros_like(before[0])
        for span, state in zip(reversed(spans), before.flip(0).unbind(), strict=True):
            a, h = self.states(span, state)
            g = work[: len(h), : h.shape[1]]
            torch.mul(dy[span, :, None], self.C[span, :, :, None], out=g)
            g[-1] += after
            gs, transitions = g.unbind(), a.unbind()
            for t in range(len(gs) - 1, 0, -1):
                gs[t - 1].addcmul_(transitions[t], gs[t])
            after = transitions[0] * gs[0]
            torch.matmul(h, dy[span, :, :, None], out=dC[span].unsqueeze(3))
            torch.matmul(g, self.u[span, :, :, None], out=dB[span].unsqueeze(3))
            torch.matmul(self.B[span, :, None], g, out=du[span].unsqueeze(2))
            g[0] *= state
            if len(g) > 1:
                g[1:].mul_(h[:-1])
            if d_lambda_bar is not None:
                torch.sum(g, 3, out=d_lambda_bar[span])
            if ddt is not None:
                assert self.dt is not None
                assert self.rate is not None
                g.mul_(a)
                for q_t, dt_t in zip(gs, self.dt[span].unsqueeze(2).unbind(), strict=True):
                    d_rate.addcmul_(q_t, dt_t)
                torch.sum(g.mul_(self.rate), 2, out=ddt[span])
        return (du, dB, dC, ddt, d_lambda_bar), d_rate.sum(0)


def _sizes(batch: int, states: int) -> tuple[int, int]:
    """The number of batch rows and the number of steps in a piece. states: the number of states per batch row and step."""
    rows = max(1, min(batch, STEP // states))
    return rows, max(SHORTEST, PIECE // (rows * states))


def _spans(length: int, piece: int) -> Iterator[slice]:
    return (slice(start, min(start + piece, length)) for start in range(0, length, piece))


def _time_first(x: Tensor | None, rows: slice) -> Any:
    return None if x is None else x[rows].transpose(0, 1).contiguous()
