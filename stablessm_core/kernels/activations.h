/* The activations in single precision, and their derivatives, on vectors of LANES numbers.
 *
 * All except ReLU use expm1(x) = 2^k expm1(r) + (2^k - 1) with k = round(x / ln 2), r = x - k ln 2 and a minimax polynomial of
 * (expm1(r) - r) / r^2 on |r| <= ln(2) / 2. erf(y) = 1 - exp(-y q(y)) with a minimax polynomial q of -log(erfc(y)) / y on
 * [0, 4]. NaN stays NaN, because comparisons with NaN are false, so that clamping never replaces NaN by a bound. Infinite
 * inputs give the result of the formula, such as NaN for silu(-inf). */

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef float unaligned_floats __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
#define BROADCAST(x) ((floats){0} + (x))

INLINE floats choose_floats(ints mask, floats yes, floats no) { return (floats)(((ints)yes & mask) | ((ints)no & ~mask)); }

/* k and expm1(r); requires x in [-150, 150] */
INLINE floats expm1_reduced_floats(floats x, ints *k) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: the low bits of the sum contain the rounded number */
    floats t = x * 1.44269504f + shift;
    *k = (ints)t - 0x4b400000;
    t -= shift;
    floats r = x - t * 0.693145752f;
    r = r - t * 1.42860677e-6f;
    floats p = r * 0.000199137288f + 0.00139403776f;
    p = p * r + 0.00833327400f;
    p = p * r + 0.0416663654f;
    p = p * r + 0.166666668f;
    p = p * r + 0.500000004f;
    floats rr = r * r;
    return p * rr + r;
}

INLINE floats power_floats(ints k) { return (floats)((k + 127) << 23); }

/* requires x in [-87, 87] */
INLINE floats expm1_floats(floats x) {
    ints k;
    floats p = expm1_reduced_floats(x, &k), s = power_floats(k);
    return s * p + (s - 1.0f);
}

INLINE floats exp_floats(floats x) {
    x = choose_floats(x > 89.0f, BROADCAST(89.0f), x);
    x = choose_floats(x < -104.0f, BROADCAST(-104.0f), x);
    ints k;
    floats p = expm1_reduced_floats(x, &k);
    ints half = k >> 1; /* multiply in two steps, because 2^k alone may overflow even if the product does not */
    return (p * power_floats(half) + power_floats(half)) * power_floats(k - half);
}

INLINE floats tanh_floats(floats x) {
    const ints sign = (ints)x & INT32_MIN;
    floats y = (floats)((ints)x ^ sign);
    y = choose_floats(y > 9.1f, BROADCAST(9.1f), y);
    floats e = expm1_floats(y + y);
    return (floats)((ints)(e / (e + 2.0f)) | sign);
}

INLINE floats sigmoid_floats(floats x) { return 1.0f / (1.0f + exp_floats(-x)); }

INLINE floats silu_floats(floats x) { return x / (1.0f + exp_floats(-x)); }

/* (1 + erf(x / sqrt 2)) / 2 */
INLINE floats normal_cdf_floats(floats x) {
    const ints sign = (ints)x & INT32_MIN;
    floats y = (floats)((ints)x ^ sign) * 0.707106781f;
    y = choose_floats(y > 4.0f, BROADCAST(4.0f), y);
    floats q = y * 1.19330896e-6f + -2.13547046e-5f;
    q = q * y + 0.000167481440f;
    q = q * y + -0.000740686999f;
    q = q * y + 0.00179935524f;
    q = q * y + -0.000253062034f;
    q = q * y + -0.0191176945f;
    q = q * y + 0.102771277f;
    q = q * y + 0.636619835f;
    q = q * y + 1.12837917f;
    floats erf = (floats)((ints)-expm1_floats(-(y * q)) | sign);
    return 0.5f + 0.5f * erf;
}

INLINE floats activation_floats(int activation, floats h) {
    switch (activation) {
    case TANH: return tanh_floats(h);
    case GELU: return h * normal_cdf_floats(h);
    case SILU: return silu_floats(h);
    case RELU: return choose_floats(h < 0.0f, BROADCAST(0.0f), h); /* keeps NaN, as torch.relu does */
    default: return h;
    }
}

/* the gradient of h from the gradient of z = act(h) */
INLINE floats activation_gradient_floats(int activation, floats grad, floats h, floats z) {
    switch (activation) {
    case TANH: return grad * (1.0f - z * z);
    case GELU: {
        floats density = exp_floats(h * h * -0.5f) * 0.398942280f;
        return grad * (h * density + normal_cdf_floats(h));
    }
    case SILU: {
        floats s = sigmoid_floats(h);
        return grad * (s * (h * (1.0f - s) + 1.0f));
    }
    case RELU: return choose_floats(z <= 0.0f, BROADCAST(0.0f), grad);
    default: return grad;
    }
}

/* load the first n of LANES numbers and set the remaining numbers to zero */
INLINE floats load_floats(const float *p, long n) {
    if (n >= LANES) return (floats) * (const unaligned_floats *)p;
    floats x = {0};
    memcpy(&x, p, n * sizeof(float));
    return x;
}

INLINE void store_floats(float *p, floats x, long n) {
    if (n >= LANES) *(unaligned_floats *)p = (unaligned_floats)x;
    else memcpy(p, &x, n * sizeof(float));
}

/* z = act(h) for `steps` rows of n columns; `step` is the distance between neighbouring rows */
#define ACTIVATE(name, ACT) \
    static NOINLINE void activate_##name(long steps, long n, long step, const float *h, float *z) { \
        for (; steps > 0; steps--, h += step, z += step) \
            for (long i = 0; i < n; i += LANES) store_floats(z + i, activation_floats(ACT, load_floats(h + i, n - i)), n - i); \
    }
ACTIVATE(tanh, TANH) ACTIVATE(gelu, GELU) ACTIVATE(silu, SILU) ACTIVATE(relu, RELU)

static void activate(long activation, long steps, long n, long step, const float *h, float *z) {
    switch (activation) {
    case TANH: activate_tanh(steps, n, step, h, z); break;
    case GELU: activate_gelu(steps, n, step, h, z); break;
    case SILU: activate_silu(steps, n, step, h, z); break;
    default: activate_relu(steps, n, step, h, z);
    }
}

/* the gradients of h from the gradients of z = act(h), for `steps` rows of n columns; the rows of `out` are adjacent */
#define ACTIVATION_GRADIENT(name, ACT) \
    static NOINLINE void activation_gradient_##name(long steps, long n, const float *grad, long grad_step, const float *h, const float *z, long step, float *out) { \
        for (; steps > 0; steps--, grad += grad_step, h += step, z += step, out += n) \
            for (long i = 0; i < n; i += LANES) { \
                floats x = activation_gradient_floats(ACT, load_floats(grad + i, n - i), load_floats(h + i, n - i), load_floats(z + i, n - i)); \
                store_floats(out + i, x, n - i); \
            } \
    }
ACTIVATION_GRADIENT(tanh, TANH) ACTIVATION_GRADIENT(gelu, GELU) ACTIVATION_GRADIENT(silu, SILU) ACTIVATION_GRADIENT(relu, RELU)

static void activation_gradient(long activation, long steps, long n, const float *grad, long grad_step, const float *h, const float *z, long step, float *out) {
    switch (activation) {
    case TANH: activation_gradient_tanh(steps, n, grad, grad_step, h, z, step, out); break;
    case GELU: activation_gradient_gelu(steps, n, grad, grad_step, h, z, step, out); break;
    case SILU: activation_gradient_silu(steps, n, grad, grad_step, h, z, step, out); break;
    default: activation_gradient_relu(steps, n, grad, grad_step, h, z, step, out);
    }
}
