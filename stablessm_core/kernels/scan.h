/* The recurrence and its adjoint for neighbouring columns. States stay in registers, and the loop runs over time. This file is
 * included once per dtype and width, after vectors.h. Steps are counted in the order of the scan, so x_step is negative if the
 * scan runs backwards in time.
 *
 * States are carried in double precision and rounded when they are stored. In single precision, the rounding errors of a state
 * whose eigenvalue is near the stability boundary would add up. If rounding makes a state non-finite, the recurrence must
 * continue with the non-finite value. At the end of each tile, the code checks whether rounding made a state non-finite. If so,
 * the CAREFUL version computes the tile again.
 *
 * Memory limits the speed of the scan. So the next inputs are prefetched, and a result of STREAM_BYTES or more bypasses the
 * caches (STREAM). A cache line that bypasses the caches is not read before it is written, which saves a third of the memory
 * traffic of a forward pass with a constant a. If rows are not whole cache lines, the results of a tile are collected in the L1
 * cache and streamed from there. */

#if NARROW
/* the state to continue with: non-finite where rounding made the stored value non-finite */
INLINE W N(keep_nonfinite)(W s, V f) {
    typedef int64_t lanes __attribute__((vector_size(WIDTH * 8)));
    lanes bad = __builtin_convertvector(f - f != 0, lanes);
    return (W)(((lanes)N(widen)(f) & bad) | ((lanes)s & ~bad));
}
#endif

INLINE int N(any_nan)(V v) {
    int found = 0;
    for (int i = 0; i < WIDTH; i++) found |= v[i] != v[i];
    return found;
}

/* h_t = a_t h_{t-1} + b_t for steps [t0, t1). s: the state before t0 (unused at t0 = 0, where h0 may be given). Returns 0 if
 * the careful version must compute the tile again */
INLINE int N(forward)(const int K, const int ltv, const int careful, const int stream, const scan_job *j, const scan_row *r, long n, double *s, long t0, long t1) {
    const long a_step = ltv ? j->a_step : 0, b_step = j->b_step, h_step = j->h_step;
    const STORAGE *a = (const STORAGE *)r->a + n + t0 * a_step, *b = (const STORAGE *)r->b + n + t0 * b_step;
    STORAGE *h = (STORAGE *)r->h + n + t0 * h_step;
    W state[MAX_BLOCK];
    N(factor) f[MAX_BLOCK];
    V nonfinite[2] = {{0}}; /* two sums, so that neither addition waits for the other */
    for (int k = 0; k < K; k++) {
        if (!ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 0);
        if (t0) {
            state[k] = N(load_wide)(s + k * WIDTH);
            continue;
        }
        state[k] = N(widen)(N(load)(b + k * WIDTH));
        if (r->h0) {
            if (ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 0);
            state[k] = N(multiply_add)(f[k], N(widen)(N(load)((const STORAGE *)r->h0 + n + k * WIDTH)), state[k]);
        }
        V stored = N(narrow)(state[k]);
        N(store)(h + k * WIDTH, stored);
#if NARROW
        if (careful) state[k] = N(keep_nonfinite)(state[k], stored);
        else nonfinite[k % 2] += stored * 0;
#endif
    }
    if (!t0) t0 = 1, a += a_step, b += b_step, h += h_step;
    for (long t = t0; t < t1; t++, a += a_step, b += b_step, h += h_step)
#pragma GCC unroll 8 /* unroll even a large loop, because the loop is slow if states are not in registers */
        for (int k = 0; k < K; k++) {
            if (ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 0);
            state[k] = N(multiply_add)(f[k], state[k], N(widen)(N(load)(b + k * WIDTH)));
            V stored = N(narrow)(state[k]);
            stream ? N(stream)(h + k * WIDTH, stored) : N(store)(h + k * WIDTH, stored);
            if (k * WIDTH * sizeof(STORAGE) % 64 == 0) {
                PREFETCH(b + PREFETCH_STEPS * b_step + k * WIDTH);
                if (ltv) PREFETCH(a + PREFETCH_STEPS * a_step + k * WIDTH);
                if (!stream) PREFETCH(h + PREFETCH_STEPS * h_step + k * WIDTH);
            }
#if NARROW
            if (careful) state[k] = N(keep_nonfinite)(state[k], stored);
            else nonfinite[k % 2] += stored * 0;
#endif
        }
    if (!careful && N(any_nan)(nonfinite[0] + nonfinite[1])) return 0;
    for (int k = 0; k < K; k++) N(store_wide)(s + k * WIDTH, state[k]);
    return 1;
}

/* g_t = grad_t + conj(a_{t+1}) g_{t+1} and da_t = conj(h_{t-1}) g_t, from the last step to the first. A tile computes da for
 * the steps (t0, t1] and g for the steps [t0, t1). The last tile also computes g for the last step, and the first tile also
 * computes da for the first step. d: grad at the last step of the tile. s: g_{t1}. The tile's sum of da is added to `sum`.
 * Returns 0 if the careful version must compute the tile again */
INLINE int N(adjoint)(const int K, const int ltv, const int need_da, const int careful, const int stream, const scan_job *j,
                      const scan_row *r, long n, const STORAGE *d, long d_step, double *s, double *sum, long t0, long t1) {
    const long a_step = ltv ? j->a_step : 0, h_step = j->h_step;
    const STORAGE *a = (const STORAGE *)r->a + n + t1 * a_step, *h = need_da ? (const STORAGE *)r->h + n + t1 * h_step : 0;
    STORAGE *g = (STORAGE *)r->g + n + t1 * h_step, *da = ltv && need_da ? (STORAGE *)r->da + n + t1 * h_step : 0;
    W state[MAX_BLOCK], total[MAX_BLOCK];
    N(factor) f[MAX_BLOCK];
    V nonfinite[2] = {{0}}; /* two sums, so that neither addition waits for the other */
    for (int k = 0; k < K; k++) {
        total[k] = (W){0};
        if (!ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 1);
        if (t1 < j->length - 1) {
            state[k] = N(load_wide)(s + k * WIDTH);
        } else {
            V first = N(load)(d + k * WIDTH);
            state[k] = N(widen)(first);
            N(store)(g + k * WIDTH, first);
        }
    }
    for (long t = t1; t > t0; t--) {
        d -= d_step, g -= h_step;
        if (need_da) h -= h_step;
#pragma GCC unroll 8
        for (int k = 0; k < K; k++) {
            if (need_da) {
                N(factor) before = N(factor_of)(N(load)(h + k * WIDTH), 1);
                if (ltv && stream) N(stream)(da + k * WIDTH, N(narrow)(N(multiply)(before, state[k])));
                else if (ltv) N(store)(da + k * WIDTH, N(narrow)(N(multiply)(before, state[k])));
                else total[k] = N(multiply_add)(before, state[k], total[k]);
            }
            if (ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 1);
            state[k] = N(multiply_add)(f[k], state[k], N(widen)(N(load)(d + k * WIDTH)));
            V stored = N(narrow)(state[k]);
            stream ? N(stream)(g + k * WIDTH, stored) : N(store)(g + k * WIDTH, stored);
            if (k * WIDTH * sizeof(STORAGE) % 64 == 0) {
                PREFETCH(d - PREFETCH_STEPS * d_step + k * WIDTH);
                if (need_da) PREFETCH(h - PREFETCH_STEPS * h_step + k * WIDTH);
                if (!stream) PREFETCH(g - PREFETCH_STEPS * h_step + k * WIDTH);
                if (ltv) PREFETCH(a - PREFETCH_STEPS * a_step + k * WIDTH);
                if (ltv && need_da && !stream) PREFETCH(da - PREFETCH_STEPS * h_step + k * WIDTH);
            }
#if NARROW
            if (careful) state[k] = N(keep_nonfinite)(state[k], stored);
            else nonfinite[k % 2] += stored * 0;
#endif
        }
        if (ltv) a -= a_step;
        if (ltv && need_da) da -= h_step;
    }
    if (!careful && N(any_nan)(nonfinite[0] + nonfinite[1])) return 0;
    for (int k = 0; k < K; k++) {
        if (t0 == 0) {
            N(factor) edge = {0};
            if (r->h0) edge = N(factor_of)(N(load)((const STORAGE *)r->h0 + n + k * WIDTH), 1);
            if (ltv && need_da) N(store)(da + k * WIDTH, r->h0 ? N(narrow)(N(multiply)(edge, state[k])) : (V){0});
            else if (need_da && r->h0) total[k] = N(multiply_add)(edge, state[k], total[k]);
            if (ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 1);
            if (r->dh0) N(store)((STORAGE *)r->dh0 + n + k * WIDTH, N(narrow)(N(multiply)(f[k], state[k])));
        }
        N(store_wide)(s + k * WIDTH, state[k]);
        if (!ltv && need_da) N(store_wide)(sum + k * WIDTH, N(load_wide)(sum + k * WIDTH) + total[k]);
    }
    return 1;
}

/* one function per combination of options, so that the compiler sees constants */
#define FORWARD(K, LTV, CAREFUL, STREAM) \
    static NOINLINE int N(forward_##K##LTV##CAREFUL##STREAM)(const scan_job *j, const scan_row *r, long n, double *s, long t0, long t1) { \
        return N(forward)(K, LTV, CAREFUL, STREAM, j, r, n, s, t0, t1); \
    }
#define ADJOINT(K, LTV, DA, CAREFUL, STREAM) \
    static NOINLINE int N(adjoint_##K##LTV##DA##CAREFUL##STREAM)(const scan_job *j, const scan_row *r, long n, const STORAGE *d, \
                                                                 long d_step, double *s, double *sum, long t0, long t1) { \
        return N(adjoint)(K, LTV, DA, CAREFUL, STREAM, j, r, n, d, d_step, s, sum, t0, t1); \
    }
#define ALL(K, CAREFUL, STREAM) \
    FORWARD(K, 0, CAREFUL, STREAM) FORWARD(K, 1, CAREFUL, STREAM) \
    ADJOINT(K, 0, 0, CAREFUL, STREAM) ADJOINT(K, 0, 1, CAREFUL, STREAM) \
    ADJOINT(K, 1, 0, CAREFUL, STREAM) ADJOINT(K, 1, 1, CAREFUL, STREAM)
/* Tables of these functions: [block size][ltv] and [block size][ltv][need_da]. The first row is used for streamed results. The
 * last row contains the careful versions. */
typedef int (*N(forward_call))(const scan_job *, const scan_row *, long, double *, long, long);
typedef int (*N(adjoint_call))(const scan_job *, const scan_row *, long, const STORAGE *, long, double *, double *, long, long);
#define F(K, CAREFUL, STREAM) {N(forward_##K##0##CAREFUL##STREAM), N(forward_##K##1##CAREFUL##STREAM)}
#define A(K, CAREFUL, STREAM) \
    {{N(adjoint_##K##00##CAREFUL##STREAM), N(adjoint_##K##01##CAREFUL##STREAM)}, \
     {N(adjoint_##K##10##CAREFUL##STREAM), N(adjoint_##K##11##CAREFUL##STREAM)}}
ALL(1, 0, 0)
ALL(1, 1, 0)
#if WIDTH == MAX_VECTOR
ALL(2, 0, 0)
ALL(4, 0, 0)
ALL(8, 0, 0)
ALL(8, 0, 1)
static const N(forward_call) N(forwards)[][2] = {F(8, 0, 1), F(8, 0, 0), F(4, 0, 0), F(2, 0, 0), F(1, 0, 0), F(1, 1, 0)};
static const N(adjoint_call) N(adjoints)[][2][2] = {A(8, 0, 1), A(8, 0, 0), A(4, 0, 0), A(2, 0, 0), A(1, 0, 0), A(1, 1, 0)};
#else
static const N(forward_call) N(forwards)[][2] = {F(1, 0, 0), F(1, 0, 0), F(1, 1, 0)};
static const N(adjoint_call) N(adjoints)[][2][2] = {A(1, 0, 0), A(1, 0, 0), A(1, 1, 0)};
#endif
#undef FORWARD
#undef ADJOINT
#undef ALL
#undef F
#undef A

/* computes K vectors of columns, beginning at column n, for one tile */
static void N(tile)(const scan_job *j, const scan_row *r, int size, long n, double *s, double *sum, long t0, long t1, int backward) {
    const int last = sizeof N(forwards) / sizeof *N(forwards) - 1; /* the row with the careful versions */
    const long K = 1L << (last - 1 - size);
    if (size == 1 && j->stream == WHOLE_LINES) size = 0;
    if (!backward) {
        if (!N(forwards)[size][j->ltv](j, r, n, s, t0, t1))
            for (long k = 0; k < K; k++) N(forwards)[last][j->ltv](j, r, n + k * WIDTH, s + k * WIDTH, t0, t1);
#if ACTIVATED
        if (j->activation) activate(j->activation, t1 - t0, K * WIDTH, j->h_step, (float *)r->h + n + t0 * j->h_step, (float *)r->z + n + t0 * j->h_step);
#endif
        return;
    }
    const STORAGE *d = (const STORAGE *)r->grad + n + t1 * j->grad_step;
    long d_step = j->grad_step;
#if ACTIVATED
    float h_grad[(TILE + 1) * MAX_BLOCK * MAX_VECTOR];
    if (j->activation) {
        const long at = n + t0 * j->h_step;
        activation_gradient(j->activation, t1 - t0 + 1, K * WIDTH, (const float *)r->grad + n + t0 * j->grad_step, j->grad_step,
                            (const float *)r->h + at, (const float *)r->z + at, j->h_step, h_grad);
        d_step = K * WIDTH, d = h_grad + (t1 - t0) * d_step;
    }
#endif
    if (!N(adjoints)[size][j->ltv][j->need_da](j, r, n, d, d_step, s, sum, t0, t1))
        for (long k = 0; k < K; k++)
            N(adjoints)[last][j->ltv][j->need_da](j, r, n + k * WIDTH, d + k * WIDTH, d_step, s + k * WIDTH, sum + k * WIDTH, t0, t1);
}

/* the base for which base + t * step is the address of step t in `tile`; `tile` begins with the step that has the lowest
 * address */
INLINE void *N(tile_base)(STORAGE *tile, long lowest, long step) { return (void *)((uintptr_t)tile - lowest * step * sizeof(STORAGE)); }

/* copy steps [t0, t1) of complete, adjacent rows from `tile` to the result, bypassing the caches */
static void N(flush_tile)(const STORAGE *tile, void *result, long step, long t0, long t1) {
    STORAGE *to = (STORAGE *)result + (step < 0 ? t1 - 1 : t0) * step;
    stream_lines((const char *)tile, (char *)to, (t1 - t0) * (step < 0 ? -step : step) * sizeof(STORAGE));
}

/* computes columns [n0, n1) of a row, at least WIDTH and at most MAX_COLUMNS columns. If the number of columns is not a
 * multiple of WIDTH, an additional vector computes the last columns. That vector overlaps the previous vector and computes the
 * same bits in the overlap. Time is split into tiles, so that all columns of a tile are read while the memory pages of the
 * tile's steps are cached. */
static void N(columns)(const scan_job *j, const scan_row *r, long n0, long n1, int backward) {
    double s[MAX_COLUMNS], s_over[WIDTH], sum[MAX_COLUMNS], sum_over[WIDTH];
    const int sizes = sizeof N(forwards) / sizeof *N(forwards) - 1;
    const long whole = (n1 - n0) / WIDTH * WIDTH, over = n1 - n0 - whole, last = j->length - 1;
    if (r->sum) memset(sum, 0, sizeof sum), memset(sum_over, 0, sizeof sum_over);
    const int stage = j->stream == PARTIAL_LINES;
    STORAGE staged[stage ? (SHORT_TILE + 1) * (n1 - n0) : 1], da[stage && r->da ? (SHORT_TILE + 1) * (n1 - n0) : 1];
    const long step = j->h_step;
    scan_row at = *r;
    long done = 0;
    do {
        long t0 = done, t1 = done + j->tile < j->length ? done + j->tile : j->length;
        if (backward) t1 = last - done, t0 = t1 - j->tile > 0 ? t1 - j->tile : 0;
        /* the steps whose results this tile computes */
        const long t2 = backward && t1 == last ? t1 + 1 : t1, da0 = t0 ? t0 + 1 : 0, da1 = t1 + 1;
        if (stage && backward) {
            at.g = N(tile_base)(staged, step < 0 ? t2 - 1 : t0, step);
            at.da = N(tile_base)(da, step < 0 ? da1 - 1 : da0, step);
        } else if (stage) at.h = N(tile_base)(staged, step < 0 ? t2 - 1 : t0, step);
        int size = 1;
        for (long n = 0; n < whole;) {
            const long block = (long)WIDTH << (sizes - 1 - size);
            if (whole - n < block) {
                size++;
                continue;
            }
            N(tile)(j, &at, size, n0 + n, s + n, sum + n, t0, t1, backward);
            n += block;
        }
        if (over) N(tile)(j, &at, sizes - 1, n1 - WIDTH, s_over, sum_over, t0, t1, backward);
        if (stage) N(flush_tile)(staged, backward ? r->g : r->h, step, t0, t2);
        if (stage && backward && j->ltv && j->need_da) N(flush_tile)(da, r->da, step, da0, da1);
        done = backward ? last - t0 : t1;
    } while (done < (backward ? last : j->length));
    if (r->sum) {
        memcpy(r->sum + n0, sum, whole * sizeof(double));
        memcpy(r->sum + n0 + whole, sum_over + WIDTH - over, over * sizeof(double));
    }
}
