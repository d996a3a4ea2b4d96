/* Layer norm for rows whose length is a multiple of 16: z = weight * x_hat + bias, x_hat = (x - mean) * rstd, rstd = (variance
 * + eps)^(-1/2). */

#define ROWS 128 /* number of rows in a chunk, chosen so that the rows and their results fit into the caches */

INLINE float sum_of(floats v) {
    v += SHUFFLE(v, ints, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += SHUFFLE(v, ints, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += SHUFFLE(v, ints, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += SHUFFLE(v, ints, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return v[0];
}

/* computes z for `rows` rows, and writes the mean and the rstd of each row to `norms` as a pair */
static void layer_norm(long rows, long d, const float *x, const float *weight, const float *bias, double eps, float *norms, float *z) {
    const float share = 1.0f / d;
    for (; rows > 0; rows--, x += d, z += d, norms += 2) {
        floats sum = {0}, squares = {0};
        for (long i = 0; i < d; i += 16) sum += load_floats(x + i, 16);
        const float mean = sum_of(sum) / d;
        for (long i = 0; i < d; i += 16) {
            floats v = load_floats(x + i, 16) - mean;
            squares += v * (v * share);
        }
        const float variance = sum_of(squares); /* if the variance overflows, the row becomes NaN, as in PyTorch, not zero */
        const float rstd = (float)(1 / __builtin_sqrt((double)variance + eps)) + variance * 0;
        norms[0] = mean, norms[1] = rstd;
        for (long i = 0; i < d; i += 16) {
            floats x_hat = (load_floats(x + i, 16) - mean) * rstd;
            store_floats(z + i, x_hat * load_floats(weight + i, 16) + load_floats(bias + i, 16), 16);
        }
    }
}

/* recompute z from the saved means and rstds */
static void recompute_layer_norm(long rows, long d, const float *x, const float *weight, const float *bias, const float *norms, float *z) {
    for (; rows > 0; rows--, x += d, z += d, norms += 2)
        for (long i = 0; i < d; i += 16) {
            floats x_hat = (load_floats(x + i, 16) - norms[0]) * norms[1];
            store_floats(z + i, x_hat * load_floats(weight + i, 16) + load_floats(bias + i, 16), 16);
        }
}

/* dx = the gradient through the norm, plus `residual` unless `residual` is NULL; also adds the gradients of weight and bias to
 * d_weight and d_bias */
static void layer_norm_gradient(long rows, long d, const float *dz, const float *x, const float *weight, const float *norms, const float *residual,
                         float *dx, float *d_weight, float *d_bias) {
    for (; rows > 0; rows--, dz += d, x += d, dx += d, norms += 2) {
        floats one = {0}, two = {0};
        for (long i = 0; i < d; i += 16) {
            floats g = load_floats(dz + i, 16), x_hat = (load_floats(x + i, 16) - norms[0]) * norms[1];
            store_floats(d_weight + i, load_floats(d_weight + i, 16) + g * x_hat, 16);
            store_floats(d_bias + i, load_floats(d_bias + i, 16) + g, 16);
            g *= load_floats(weight + i, 16);
            one += g;
            two += g * x_hat;
        }
        const float mean = sum_of(one) / d, slope = sum_of(two) / d;
        for (long i = 0; i < d; i += 16) {
            floats x_hat = (load_floats(x + i, 16) - norms[0]) * norms[1];
            floats found = norms[1] * (load_floats(dz + i, 16) * load_floats(weight + i, 16) - mean - x_hat * slope);
            if (residual) found += load_floats(residual + i, 16);
            store_floats(dx + i, found, 16);
        }
        if (residual) residual += d;
    }
}
