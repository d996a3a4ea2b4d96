/* The two halves of a residual block, and the norm. Each of these three takes one call in the forward pass and one call in the
 * backward pass. Norm, products, scan and gate are applied to a chunk of rows while the chunk is in the caches. Every width is
 * a multiple of 16. network/small_blocks.py describes the arrays.
 *
 * Gradients of weights are summed over the chunks of a group in order, and then over the groups in order. How rows are split
 * into chunks and groups depends only on the shapes. */

#define MAX_GROUPS 16  /* maximum number of groups */
#define MAX_WIDTH 512 /* maximum number of elements in a row of h or m */

INLINE double double_from_bits(int64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* memory for `numbers` 4-byte values, aligned so that no vector crosses a cache line */
static void *allocate_aligned(long numbers) { return aligned_alloc(64, (numbers * 4 + 63) / 64 * 64); }

/* number of items in a group, if `count` items are split into groups */
INLINE long group_size(long count) { return (count + MAX_GROUPS - 1) / MAX_GROUPS; }

/* to = the sum over the groups. Each group has `count` numbers and starts `group_stride` numbers after the start of the
 * previous group. gain: NULL, or one factor for every `row` numbers. */
static void sum_groups(long groups, long group_stride, const float *from, long count, const float *gain, long row, float *to) {
    for (long i = 0; i < count; i += LANES) {
        floats total = load_floats(from + i, LANES);
        for (long g = 1; g < groups; g++) total += load_floats(from + g * group_stride + i, LANES);
        store_floats(to + i, gain ? gain[i / row] * total : total, LANES);
    }
}

/* ---- y = x + C act(h) + D z, h_t = lambda_bar h_{t-1} + B z_t, z = norm(x) ---- */

typedef struct {
    long batch, length, d, n, activation;
    double eps;
    const float *x, *weight, *bias, *lambda_bar, *D, *dy;
    const float *B, *C; /* (d, n) and (n, d) in the forward pass, (n, d) and (d, n) in the backward pass */
    float *y, *last, *norms, *h, *active, *dx;
    float *workspace;  /* per group: sums of dB, dC, dD, d_weight, d_bias; then space for two sequences of states and ROWS rows of z */
    double *sums; /* per group: the sum of d_lambda, and d_lambda of one sequence */
    long group_stride;
} state_space_job;

static void state_space_scan(const state_space_job *j, const float *b, float *h, float *z, const float *grad, float *g, double *sum) {
    scan_job scan = {
        .rows = 1, .length = j->length, .columns = j->n, .group = 1, .need_da = 1, .activation = j->activation, .width = j->n, .tile = TILE,
        .b_step = j->n, .h_step = j->n, .grad_step = j->n, .a = (const char *)j->lambda_bar, .b = (const char *)b,
        .grad = (const char *)grad, .h = (char *)h, .z = (char *)z, .g = (char *)g, .sum = sum,
    };
    scan_task_f32(&scan, 0, grad != NULL);
}

static void state_space_task(const void *job, long index) {
    const state_space_job *j = job;
    const long d = j->d, n = j->n, first = index * j->length;
    const float *x = j->x + first * d;
    float *y = j->y + first * d, *h = j->h + first * n, *active = j->active + first * n;
    for (long t = 0; t < j->length; t += ROWS) {
        const long rows = j->length - t < ROWS ? j->length - t : ROWS;
        layer_norm(rows, d, x + t * d, j->weight, j->bias, j->eps, j->norms + 2 * (first + t), y + t * d);
        matmul(rows, d, n, y + t * d, j->B, active + t * n, 0);
    }
    /* the scan reads its input from `active` and overwrites `active` with the activations */
    state_space_scan(j, active, h, active, NULL, NULL, NULL);
    for (long t = 0; t < j->length; t += ROWS) {
        const long rows = j->length - t < ROWS ? j->length - t : ROWS;
        for (long r = t; r < t + rows; r++)
            for (long i = 0; i < d; i += LANES) {
                floats z = load_floats(y + r * d + i, LANES);
                store_floats(y + r * d + i, load_floats(x + r * d + i, LANES) + load_floats(j->D + i, LANES) * z, LANES);
            }
        matmul(rows, n, d, (j->activation ? active : h) + t * n, j->C, y + t * d, 1);
    }
    memcpy(j->last + index * n, h + (j->length - 1) * n, n * sizeof(float));
}

static void state_space_gradient_task(const void *job, long group) {
    const state_space_job *j = job;
    const long d = j->d, n = j->n, each = group_size(j->batch), end = (group + 1) * each < j->batch ? (group + 1) * each : j->batch;
    float *dB = j->workspace + group * j->group_stride, *dC = dB + n * d, *dD = dC + n * d, *d_weight = dD + d, *d_bias = d_weight + d;
    float *grad = d_bias + d, *g = grad + j->length * n, *z = g + j->length * n;
    double *sum = j->sums + 2 * group * n, *one = sum + n;
    memset(dB, 0, (2 * n * d + 3 * d) * sizeof(float));
    memset(sum, 0, n * sizeof(double));
    for (long row = group * each; row < end; row++) {
        const long first = row * j->length;
        const float *x = j->x + first * d, *dy = j->dy + first * d, *norms = j->norms + 2 * first;
        float *h = j->h + first * n, *active = j->activation ? j->active + first * n : h, *dx = j->dx + first * d;
        for (long t = 0; t < j->length; t += ROWS) {
            const long rows = j->length - t < ROWS ? j->length - t : ROWS;
            matmul(rows, d, n, dy + t * d, j->C, grad + t * n, 0);
            add_weight_gradient(rows, d, n, dy + t * d, active + t * n, dC);
        }
        state_space_scan(j, NULL, h, active, grad, g, one);
        for (long i = 0; i < n; i++) sum[i] += one[i];
        for (long t = 0; t < j->length; t += ROWS) {
            const long rows = j->length - t < ROWS ? j->length - t : ROWS;
            recompute_layer_norm(rows, d, x + t * d, j->weight, j->bias, norms + 2 * t, z);
            add_weight_gradient(rows, n, d, g + t * n, z, dB);
            for (long r = 0; r < rows; r++)
                for (long i = 0; i < d; i += LANES) {
                    floats up = load_floats(dy + (t + r) * d + i, LANES);
                    store_floats(dD + i, load_floats(dD + i, LANES) + up * load_floats(z + r * d + i, LANES), LANES);
                    store_floats(z + r * d + i, up * load_floats(j->D + i, LANES), LANES);
                }
            matmul(rows, n, d, g + t * n, j->B, z, 1);
            layer_norm_gradient(rows, d, z, x + t * d, j->weight, norms + 2 * t, dy + t * d, dx + t * d, d_weight, d_bias);
        }
    }
}

/* p: batch, length, d_model, d_state, activation, bits of eps, then addresses: x, weight, bias, lambda_bar, B, gain or 0, C, D;
 * y, last state, norms, h, active. Returns nonzero if memory ran out */
long stablessm_state_space(const int64_t *p, parallel_call parallel, long threads) {
    const long d = p[2], n = p[3];
    float *packed = allocate_aligned(2 * n * d);
    if (!packed) return 1;
    transpose(n, d, (const float *)p[10], (const float *)p[11], packed, n);
    transpose(d, n, (const float *)p[12], NULL, packed + n * d, d);
    state_space_job j = {
        .batch = p[0], .length = p[1], .d = d, .n = n, .activation = p[4], .eps = double_from_bits(p[5]), .x = (const float *)p[6],
        .weight = (const float *)p[7], .bias = (const float *)p[8], .lambda_bar = (const float *)p[9], .D = (const float *)p[13],
        .B = packed, .C = packed + n * d,
        .y = (float *)p[14], .last = (float *)p[15], .norms = (float *)p[16], .h = (float *)p[17], .active = (float *)p[18],
    };
    run_tasks(state_space_task, &j, j.batch, parallel, threads);
    free(packed);
    return 0;
}

/* p: as in stablessm_state_space up to D, then addresses: norms, h, active, dy; dx, d_weight, d_bias, d_lambda_bar, dB, dC,
 * dD */
long stablessm_state_space_gradient(const int64_t *p, parallel_call parallel, long threads) {
    const long batch = p[0], length = p[1], d = p[2], n = p[3], groups = (batch + group_size(batch) - 1) / group_size(batch);
    const long sums = 2 * n * d + 3 * d, group_stride = sums + 2 * length * n + ROWS * d;
    const float *gain = (const float *)p[11], *B = (const float *)p[10];
    char *workspace = allocate_aligned(groups * group_stride + n * d + 4 * groups * n);
    if (!workspace) return 1;
    state_space_job j = {
        .batch = batch, .length = length, .d = d, .n = n, .activation = p[4], .x = (const float *)p[6],
        .weight = (const float *)p[7], .bias = (const float *)p[8], .lambda_bar = (const float *)p[9], .D = (const float *)p[13],
        .B = B, .C = (const float *)p[12], .norms = (float *)p[14], .h = (float *)p[15], .active = (float *)p[16],
        .dy = (const float *)p[17], .dx = (float *)p[18], .sums = (double *)workspace, .workspace = (float *)((double *)workspace + 2 * groups * n),
        .group_stride = group_stride,
    };
    if (gain) {
        float *scaled = j.workspace + groups * group_stride;
        for (long i = 0; i < n * d; i++) scaled[i] = gain[i / d] * B[i];
        j.B = scaled;
    }
    run_tasks(state_space_gradient_task, &j, groups, parallel, threads);
    sum_groups(groups, group_stride, j.workspace, n * d, gain, d, (float *)p[22]);
    sum_groups(groups, group_stride, j.workspace + n * d, n * d, NULL, 1, (float *)p[23]);
    sum_groups(groups, group_stride, j.workspace + 2 * n * d, d, NULL, 1, (float *)p[24]);
    sum_groups(groups, group_stride, j.workspace + 2 * n * d + d, d, NULL, 1, (float *)p[19]);
    sum_groups(groups, group_stride, j.workspace + 2 * n * d + 2 * d, d, NULL, 1, (float *)p[20]);
    for (long i = 0; i < n; i++) {
        double total = 0;
        for (long g = 0; g < groups; g++) total += j.sums[2 * g * n + i];
        ((float *)p[21])[i] = (float)total;
    }
    free(workspace);
    return 0;
}

/* ---- y = x + W_d (silu(g) u), (g, u) = (W_g, W_u) z, z = norm(x) ---- */

/* computes m = silu(g) u, replaces g by silu(g), and stores sigmoid(g), so that the gradient needs no exponential */
static void gate_rows(long rows, long n, float *gu, float *sigmoid, float *m) {
    for (; rows > 0; rows--, gu += 2 * n, sigmoid += n, m += n)
        for (long i = 0; i < n; i += LANES) {
            floats g = load_floats(gu + i, LANES), s = sigmoid_floats(g), silu = g * s;
            store_floats(gu + i, silu, LANES);
            store_floats(sigmoid + i, s, LANES);
            store_floats(m + i, silu * load_floats(gu + n + i, LANES), LANES);
        }
}

/* recomputes m, and computes the gradients of g and u from the gradient of m. The gradients of g and u are adjacent in each
 * row. silu'(g) = s + silu(g) (1 - s) with s = sigmoid(g). */
static void gate_gradient_rows(long rows, long n, const float *gu, const float *sigmoid, const float *dm, float *m, float *dgu) {
    for (; rows > 0; rows--, gu += 2 * n, sigmoid += n, dm += n, m += n, dgu += 2 * n)
        for (long i = 0; i < n; i += LANES) {
            floats silu = load_floats(gu + i, LANES), u = load_floats(gu + n + i, LANES), s = load_floats(sigmoid + i, LANES);
            floats d = load_floats(dm + i, LANES);
            store_floats(m + i, silu * u, LANES);
            store_floats(dgu + i, d * u * (silu * (1.0f - s) + s), LANES);
            store_floats(dgu + n + i, d * silu, LANES);
        }
}

typedef struct {
    long rows, d, n; /* n: width of g and of u */
    double eps;
    const float *x, *weight, *bias, *gate, *up, *down, *dy; /* forward: gate contains gate and up, (d, 2 n); down is (n, d) */
    float *y, *norms, *gu, *sigmoid, *dx;
    float *workspace; /* per group: sums of d_gate and d_up, d_down, d_weight, d_bias; then space for ROWS rows of dm, m, dgu and z */
    long group_stride;
} mlp_job;

static void mlp_task(const void *job, long index) {
    const mlp_job *j = job;
    const long d = j->d, n = j->n, first = index * ROWS, rows = j->rows - first < ROWS ? j->rows - first : ROWS;
    const float *x = j->x + first * d;
    float *y = j->y + first * d, *gu = j->gu + first * 2 * n, m[ROWS * MAX_WIDTH] __attribute__((aligned(64)));
    layer_norm(rows, d, x, j->weight, j->bias, j->eps, j->norms + 2 * first, y);
    matmul(rows, d, 2 * n, y, j->gate, gu, 0);
    gate_rows(rows, n, gu, j->sigmoid + first * n, m);
    memcpy(y, x, rows * d * sizeof(float));
    matmul(rows, n, d, m, j->down, y, 1);
}

static void mlp_gradient_task(const void *job, long group) {
    const mlp_job *j = job;
    const long d = j->d, n = j->n, chunks = (j->rows + ROWS - 1) / ROWS, each = group_size(chunks);
    const long begin = group * each * ROWS, end = begin + each * ROWS < j->rows ? begin + each * ROWS : j->rows;
    float *d_both = j->workspace + group * j->group_stride, *d_down = d_both + 2 * n * d, *d_weight = d_down + n * d, *d_bias = d_weight + d;
    float *dm = d_bias + d, *m = dm + ROWS * n, *dgu = m + ROWS * n, *z = dgu + ROWS * 2 * n;
    memset(d_both, 0, (3 * n * d + 2 * d) * sizeof(float));
    for (long first = begin; first < end; first += ROWS) {
        const long rows = end - first < ROWS ? end - first : ROWS;
        const float *x = j->x + first * d, *dy = j->dy + first * d, *norms = j->norms + 2 * first, *gu = j->gu + first * 2 * n;
        matmul(rows, d, n, dy, j->down, dm, 0);
        gate_gradient_rows(rows, n, gu, j->sigmoid + first * n, dm, m, dgu);
        add_weight_gradient(rows, d, n, dy, m, d_down);
        recompute_layer_norm(rows, d, x, j->weight, j->bias, norms, z);
        add_weight_gradient(rows, 2 * n, d, dgu, z, d_both);
        product_job by_gate = {.a = dgu, .b = j->gate, .c = z, .a_row = 2 * n, .a_step = 1, .b_step = d, .c_row = d, .depth = n};
        product_job by_up = by_gate;
        by_up.a += n, by_up.b = j->up, by_up.add = 1;
        product(&by_gate, rows, d);
        product(&by_up, rows, d);
        layer_norm_gradient(rows, d, z, x, j->weight, norms, dy, j->dx + first * d, d_weight, d_bias);
    }
}

/* p: rows, d_model, d_hidden, bits of eps, then addresses: x, weight, bias, gate, up, down; y, norms, gu, sigmoid. Returns
 * nonzero if memory ran out */
long stablessm_gated_mlp(const int64_t *p, parallel_call parallel, long threads) {
    const long d = p[1], n = p[2];
    float *packed = allocate_aligned(3 * n * d);
    if (!packed) return 1;
    transpose(n, d, (const float *)p[7], NULL, packed, 2 * n);
    transpose(n, d, (const float *)p[8], NULL, packed + n, 2 * n);
    transpose(d, n, (const float *)p[9], NULL, packed + 2 * n * d, d);
    mlp_job j = {
        .rows = p[0], .d = d, .n = n, .eps = double_from_bits(p[3]), .x = (const float *)p[4], .weight = (const float *)p[5],
        .bias = (const float *)p[6], .gate = packed, .down = packed + 2 * n * d,
        .y = (float *)p[10], .norms = (float *)p[11], .gu = (float *)p[12], .sigmoid = (float *)p[13],
    };
    run_tasks(mlp_task, &j, (j.rows + ROWS - 1) / ROWS, parallel, threads);
    free(packed);
    return 0;
}

/* p: as in stablessm_gated_mlp up to down, then addresses: norms, gu, sigmoid, dy; dx, d_weight, d_bias, d_gate, d_up,
 * d_down */
long stablessm_gated_mlp_gradient(const int64_t *p, parallel_call parallel, long threads) {
    const long d = p[1], n = p[2], chunks = (p[0] + ROWS - 1) / ROWS, each = group_size(chunks), groups = (chunks + each - 1) / each;
    const long group_stride = 3 * n * d + 2 * d + ROWS * (4 * n + d);
    float *workspace = allocate_aligned(groups * group_stride);
    if (!workspace) return 1;
    mlp_job j = {
        .rows = p[0], .d = d, .n = n, .x = (const float *)p[4], .weight = (const float *)p[5], .bias = (const float *)p[6],
        .gate = (const float *)p[7], .up = (const float *)p[8], .down = (const float *)p[9], .norms = (float *)p[10],
        .gu = (float *)p[11], .sigmoid = (float *)p[12], .dy = (const float *)p[13], .dx = (float *)p[14], .workspace = workspace, .group_stride = group_stride,
    };
    run_tasks(mlp_gradient_task, &j, groups, parallel, threads);
    const float *sums = workspace;
    const long counts[] = {n * d, n * d, n * d, d, d}, places[] = {17, 18, 19, 15, 16};
    for (int i = 0; i < 5; sums += counts[i++]) sum_groups(groups, group_stride, sums, counts[i], NULL, 1, (float *)p[places[i]]);
    free(workspace);
    return 0;
}

/* ---- z = norm(x) ---- */

typedef struct {
    long rows, d;
    double eps;
    const float *x, *weight, *bias, *dz;
    float *z, *norms, *dx, *sums;
} norm_job;

static void norm_task(const void *job, long index) {
    const norm_job *j = job;
    const long first = index * ROWS, rows = j->rows - first < ROWS ? j->rows - first : ROWS, d = j->d;
    layer_norm(rows, d, j->x + first * d, j->weight, j->bias, j->eps, j->norms + 2 * first, j->z + first * d);
}

static void norm_gradient_task(const void *job, long group) {
    const norm_job *j = job;
    const long d = j->d, each = group_size((j->rows + ROWS - 1) / ROWS) * ROWS, first = group * each;
    const long rows = j->rows - first < each ? j->rows - first : each;
    float *sums = j->sums + 2 * group * d;
    memset(sums, 0, 2 * d * sizeof(float));
    layer_norm_gradient(rows, d, j->dz + first * d, j->x + first * d, j->weight, j->norms + 2 * first, NULL, j->dx + first * d, sums, sums + d);
}

/* p: rows, d_model, bits of eps, then addresses: x, weight, bias; z, norms */
long stablessm_norm(const int64_t *p, parallel_call parallel, long threads) {
    norm_job j = {.rows = p[0], .d = p[1], .eps = double_from_bits(p[2]), .x = (const float *)p[3], .weight = (const float *)p[4],
                  .bias = (const float *)p[5], .z = (float *)p[6], .norms = (float *)p[7]};
    run_tasks(norm_task, &j, (j.rows + ROWS - 1) / ROWS, parallel, threads);
    return 0;
}

/* p: rows, d_model, bits of eps, then addresses: x, weight, norms, dz; dx, d_weight, d_bias. Returns nonzero if memory ran
 * out */
long stablessm_norm_gradient(const int64_t *p, parallel_call parallel, long threads) {
    const long chunks = (p[0] + ROWS - 1) / ROWS, each = group_size(chunks), groups = (chunks + each - 1) / each, d = p[1];
    norm_job j = {.rows = p[0], .d = d, .x = (const float *)p[3], .weight = (const float *)p[4], .norms = (float *)p[5],
                  .dz = (const float *)p[6], .dx = (float *)p[7], .sums = allocate_aligned(2 * groups * d)};
    if (!j.sums) return 1;
    run_tasks(norm_gradient_task, &j, groups, parallel, threads);
    sum_groups(groups, 2 * d, j.sums, d, NULL, 1, (float *)p[8]);
    sum_groups(groups, 2 * d, j.sums + d, d, NULL, 1, (float *)p[9]);
    free(j.sums);
    return 0;
}
