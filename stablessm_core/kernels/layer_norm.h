/* Layer norm for rows whose length is a multiple of 16: z = weight * x_hat + bias, x_hat = (x - mean) * rstd, rstd = (variance
 * + eps)^(-1/2). */

#define ROWS 128 /* number of rows in a chunk, chosen so that the rows and their results fit into the caches */

#define SUM_VECTORS (16 / LANES) /* number of vectors that hold the 16 sums of a row; sum i contains every 16th number, from number i */

/* the total of 16 sums, always in the same order: first the sums whose numbers differ by 8, then by 4, by 2 and by 1 */
INLINE float total_of(const floats *sums) {
#if LANES == 16
    floats v = sums[0];
    v += SHUFFLE(v, ints, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += SHUFFLE(v, ints, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += SHUFFLE(v, ints, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += SHUFFLE(v, ints, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif LANES == 8
    floats v = sums[0] + sums[1];
    v += SHUFFLE(v, ints, 4, 5, 6, 7, 0, 1, 2, 3);
    v += SHUFFLE(v, ints, 2, 3, 0, 1, 6, 7, 4, 5);
    v += SHUFFLE(v, ints, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    floats v = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    v += SHUFFLE(v, ints, 2, 3, 0, 1);
    v += SHUFFLE(v, ints, 1, 0, 3, 2);
#endif
    return v[0];
}

/* computes z for `rows` rows, and writes the mean and the rstd of each row to `norms` as a pair */
static void layer_norm(long rows, long d, const float *x, const float *weight, const float *bias, double eps, float *norms, float *z) {
    const float share = 1.0f / d;
    for (; rows > 0; rows--, x += d, z += d, norms += 2) {
        floats sum[SUM_VECTORS], squares[SUM_VECTORS];
        for (int k = 0; k < SUM_VECTORS; k++) sum[k] = squares[k] = (floats){0};
        for (long i = 0; i < d; i += 16)
            for (int k = 0; k < SUM_VECTORS; k++) sum[k] += load_floats(x + i + k * LANES, LANES);
        const float mean = total_of(sum) / d;
        for (long i = 0; i < d; i += 16)
            for (int k = 0; k < SUM_VECTORS; k++) {
                floats v = load_floats(x + i + k * LANES, LANES) - mean;
                squares[k] += v * (v * share);
            }
        const float variance = total_of(squares); /* if the variance overflows, the row becomes NaN, as in PyTorch, not zero */
        const float rstd = (float)(1 / __builtin_sqrt((double)variance + eps)) + variance * 0;
        norms[0] = mean, norms[1] = rstd;
        for (long i = 0; i < d; i += LANES) {
            floats x_hat = (load_floats(x + i, LANES) - mean) * rstd;
            store_floats(z + i, x_hat * load_floats(weight + i, LANES) + load_floats(bias + i, LANES), LANES);
        }
    }
}

/* recompute z from the saved means and rstds */
static void recompute_layer_norm(long rows, long d, const float *x, const float *weight, const float *bias, const float *norms, float *z) {
    for (; rows > 0; rows--, x += d, z += d, norms += 2)
        for (long i = 0; i < d; i += LANES) {
            floats x_hat = (load_floats(x + i, LANES) - norms[0]) * norms[1];
            store_floats(z + i, x_hat * load_floats(weight + i, LANES) + load_floats(bias + i, LANES), LANES);
        }
}

/* dx = the gradient through the norm, plus `residual` unless `residual` is NULL; also adds the gradients of weight and bias to
 * d_weight and d_bias */
static void layer_norm_gradient(long rows, long d, const float *dz, const float *x, const float *weight, const float *norms, const float *residual,
                         float *dx, float *d_weight, float *d_bias) {
    for (; rows > 0; rows--, dz += d, x += d, dx += d, norms += 2) {
        floats one[SUM_VECTORS], two[SUM_VECTORS];
        for (int k = 0; k < SUM_VECTORS; k++) one[k] = two[k] = (floats){0};
        for (long block = 0; block < d; block += 16)
            for (int k = 0; k < SUM_VECTORS; k++) {
                const long i = block + k * LANES;
                floats g = load_floats(dz + i, LANES), x_hat = (load_floats(x + i, LANES) - norms[0]) * norms[1];
                store_floats(d_weight + i, load_floats(d_weight + i, LANES) + g * x_hat, LANES);
                store_floats(d_bias + i, load_floats(d_bias + i, LANES) + g, LANES);
                g *= load_floats(weight + i, LANES);
                one[k] += g;
                two[k] += g * x_hat;
            }
        const float mean = total_of(one) / d, slope = total_of(two) / d;
        for (long i = 0; i < d; i += LANES) {
            floats x_hat = (load_floats(x + i, LANES) - norms[0]) * norms[1];
            floats found = norms[1] * (load_floats(dz + i, LANES) * load_floats(weight + i, LANES) - mean - x_hat * slope);
            if (residual) found += load_floats(residual + i, LANES);
            store_floats(dx + i, found, LANES);
        }
        if (residual) residual += d;
    }
}
