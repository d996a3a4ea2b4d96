/* The halves of a residual block, each forward and backward in one call: a piece of rows goes through norm, products, scan and gate
 * while it lies in the caches. Every width is a multiple of 16. compiled/halves.py says what each array is.
 *
 * Gradients of weights are summed over the pieces of a group in their order, and then over the groups in theirs. How rows are cut
 * depends on shapes alone. */

#define GROUPS 16   /* at most */
#define WIDEST 512  /* of a row of h and of m */

INLINE double double_of(int64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* memory that vectors do not lie across cache lines in, of so many numbers of 4 bytes */
static void *lines(long numbers) { return aligned_alloc(64, (numbers * 4 + 63) / 64 * 64); }

/* things of a group, when `count` of them are cut */
INLINE long of_group(long count) { return (count + GROUPS - 1) / GROUPS; }

/* the sum over groups of `count` numbers, `apart` numbers lying between one group's and the next one's; gain: of rows of `row` */
static void sum_groups(long groups, long apart, const float *from, long count, const float *gain, long row, float *to) {
    for (long i = 0; i < count; i += 16) {
        floats total = load_floats(from + i, 16);
        for (long g = 1; g < groups; g++) total += load_floats(from + g * apart + i, 16);
        store_floats(to + i, gain ? gain[i / row] * total : total, 16);
    }
}

/* ---- y = x + C act(h) + D z, h_t = lambda_bar h_{t-1} + B z_t, z = norm(x) ---- */

typedef struct {
    long batch, length, d, n, activation;
    double eps;
    const float *x, *weight, *bias, *lambda_bar, *D, *dy;
    const float *B, *C; /* as they are multiplied: forward (d, n) and (n, d), backward (n, d) and (d, n) */
    float *y, *last, *norms, *h, *active, *dx;
    float *room;  /* of each group: sums of dB, dC, dD, d_weight, d_bias; then space for two sequences of states and ROWS of z */
    double *sums; /* of each group: d_lambda, and that of one sequence */
    long apart;
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
        normalise(rows, d, x + t * d, j->weight, j->bias, j->eps, j->norms + 2 * (first + t), y + t * d);
        times(rows, d, n, y + t * d, j->B, active + t * n, 0);
    }
    state_space_scan(j, active, h, active, NULL, NULL, NULL); /* what drives it lies where its activation goes */
    for (long t = 0; t < j->length; t += ROWS) {
        const long rows = j->length - t < ROWS ? j->length - t : ROWS;
        for (long r = t; r < t + rows; r++)
            for (long i = 0; i < d; i += 16) {
                floats z = load_floats(y + r * d + i, 16);
                store_floats(y + r * d + i, load_floats(x + r * d + i, 16) + load_floats(j->D + i, 16) * z, 16);
            }
        times(rows, n, d, (j->activation ? active : h) + t * n, j->C, y + t * d, 1);
    }
    memcpy(j->last + index * n, h + (j->length - 1) * n, n * sizeof(float));
}

static void state_space_gradient_task(const void *job, long group) {
    const state_space_job *j = job;
    const long d = j->d, n = j->n, each = of_group(j->batch), end = (group + 1) * each < j->batch ? (group + 1) * each : j->batch;
    float *dB = j->room + group * j->apart, *dC = dB + n * d, *dD = dC + n * d, *d_weight = dD + d, *d_bias = d_weight + d;
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
            times(rows, d, n, dy + t * d, j->C, grad + t * n, 0);
            add_weight_gradient(rows, d, n, dy + t * d, active + t * n, dC);
        }
        state_space_scan(j, NULL, h, active, grad, g, one);
        for (long i = 0; i < n; i++) sum[i] += one[i];
        for (long t = 0; t < j->length; t += ROWS) {
            const long rows = j->length - t < ROWS ? j->length - t : ROWS;
            normalise_again(rows, d, x + t * d, j->weight, j->bias, norms + 2 * t, z);
            add_weight_gradient(rows, n, d, g + t * n, z, dB);
            for (long r = 0; r < rows; r++)
                for (long i = 0; i < d; i += 16) {
                    floats up = load_floats(dy + (t + r) * d + i, 16);
                    store_floats(dD + i, load_floats(dD + i, 16) + up * load_floats(z + r * d + i, 16), 16);
                    store_floats(z + r * d + i, up * load_floats(j->D + i, 16), 16);
                }
            times(rows, n, d, g + t * n, j->B, z, 1);
            through_norm(rows, d, z, x + t * d, j->weight, norms + 2 * t, dy + t * d, dx + t * d, d_weight, d_bias);
        }
    }
}

/* p: batch, length, d_model, d_state, activation, bits of eps, then addresses: x, weight, bias, lambda_bar, B, gain or 0, C, D; y,
 * last state, norms, h, active. Not 0: out of memory */
long stablessm_state_space(const int64_t *p, parallel_call parallel, long threads) {
    const long d = p[2], n = p[3];
    float *packed = lines(2 * n * d);
    if (!packed) return 1;
    transpose(n, d, (const float *)p[10], (const float *)p[11], packed, n);
    transpose(d, n, (const float *)p[12], NULL, packed + n * d, d);
    state_space_job j = {
        .batch = p[0], .length = p[1], .d = d, .n = n, .activation = p[4], .eps = double_of(p[5]), .x = (const float *)p[6],
        .weight = (const float *)p[7], .bias = (const float *)p[8], .lambda_bar = (const float *)p[9], .D = (const float *)p[13],
        .B = packed, .C = packed + n * d,
        .y = (float *)p[14], .last = (float *)p[15], .norms = (float *)p[16], .h = (float *)p[17], .active = (float *)p[18],
    };
    run_tasks(state_space_task, &j, j.batch, parallel, threads);
    free(packed);
    return 0;
}

/* p: as above up to D, then addresses: norms, h, active, dy; dx, d_weight, d_bias, d_lambda_bar, dB, dC, dD */
long stablessm_state_space_gradient(const int64_t *p, parallel_call parallel, long threads) {
    const long batch = p[0], length = p[1], d = p[2], n = p[3], groups = (batch + of_group(batch) - 1) / of_group(batch);
    const long sums = 2 * n * d + 3 * d, apart = sums + 2 * length * n + ROWS * d;
    const float *gain = (const float *)p[11], *B = (const float *)p[10];
    char *room = lines(groups * apart + n * d + 4 * groups * n);
    if (!room) return 1;
    state_space_job j = {
        .batch = batch, .length = length, .d = d, .n = n, .activation = p[4], .x = (const float *)p[6],
        .weight = (const float *)p[7], .bias = (const float *)p[8], .lambda_bar = (const float *)p[9], .D = (const float *)p[13],
        .B = B, .C = (const float *)p[12], .norms = (float *)p[14], .h = (float *)p[15], .active = (float *)p[16],
        .dy = (const float *)p[17], .dx = (float *)p[18], .sums = (double *)room, .room = (float *)((double *)room + 2 * groups * n),
        .apart = apart,
    };
    if (gain) {
        float *gained = j.room + groups * apart;
        for (long i = 0; i < n * d; i++) gained[i] = gain[i / d] * B[i];
        j.B = gained;
    }
    run_tasks(state_space_gradient_task, &j, groups, parallel, threads);
    sum_groups(groups, apart, j.room, n * d, gain, d, (float *)p[22]);
    sum_groups(groups, apart, j.room + n * d, n * d, NULL, 1, (float *)p[23]);
    sum_groups(groups, apart, j.room + 2 * n * d, d, NULL, 1, (float *)p[24]);
    sum_groups(groups, apart, j.room + 2 * n * d + d, d, NULL, 1, (float *)p[19]);
    sum_groups(groups, apart, j.room + 2 * n * d + 2 * d, d, NULL, 1, (float *)p[20]);
    for (long i = 0; i < n; i++) {
        double total = 0;
        for (long g = 0; g < groups; g++) total += j.sums[2 * g * n + i];
        ((float *)p[21])[i] = (float)total;
    }
    free(room);
    return 0;
}

/* ---- y = x + W_d (silu(g) u), (g, u) = (W_g, W_u) z, z = norm(x) ---- */

/* g turns into silu(g) where it lies; sigmoid(g) is kept beside it, so that the gradient needs no exponential */
static void gate_rows(long rows, long n, float *gu, float *sigmoid, float *m) {
    for (; rows > 0; rows--, gu += 2 * n, sigmoid += n, m += n)
        for (long i = 0; i < n; i += 16) {
            floats g = load_floats(gu + i, 16), s = sigmoid_floats(g), silu = g * s;
            store_floats(gu + i, silu, 16);
            store_floats(sigmoid + i, s, 16);
            store_floats(m + i, silu * load_floats(gu + n + i, 16), 16);
        }
}

/* m again, and the gradients of g and u side by side from that of m; silu'(g) = s + silu(g) (1 - s) with s = sigmoid(g) */
static void gate_gradient_rows(long rows, long n, const float *gu, const float *sigmoid, const float *dm, float *m, float *dgu) {
    for (; rows > 0; rows--, gu += 2 * n, sigmoid += n, dm += n, m += n, dgu += 2 * n)
        for (long i = 0; i < n; i += 16) {
            floats silu = load_floats(gu + i, 16), u = load_floats(gu + n + i, 16), s = load_floats(sigmoid + i, 16);
            floats d = load_floats(dm + i, 16);
            store_floats(m + i, silu * u, 16);
            store_floats(dgu + i, d * u * (silu * (1.0f - s) + s), 16);
            store_floats(dgu + n + i, d * silu, 16);
        }
}

typedef struct {
    long rows, d, n; /* n: of g and of u */
    double eps;
    const float *x, *weight, *bias, *gate, *up, *down, *dy; /* forward gate holds both, (d, 2 n), and down is (n, d) */
    float *y, *norms, *gu, *sigmoid, *dx;
    float *room; /* of each group: sums of d_gate and d_up, d_down, d_weight, d_bias; then space for ROWS of dm, m, dgu and z */
    long apart;
} mlp_job;

static void mlp_task(const void *job, long index) {
    const mlp_job *j = job;
    const long d = j->d, n = j->n, first = index * ROWS, rows = j->rows - first < ROWS ? j->rows - first : ROWS;
    const float *x = j->x + first * d;
    float *y = j->y + first * d, *gu = j->gu + first * 2 * n, m[ROWS * WIDEST] __attribute__((aligned(64)));
    normalise(rows, d, x, j->weight, j->bias, j->eps, j->norms + 2 * first, y);
    times(rows, d, 2 * n, y, j->gate, gu, 0);
    gate_rows(rows, n, gu, j->sigmoid + first * n, m);
    memcpy(y, x, rows * d * sizeof(float));
    times(rows, n, d, m, j->down, y, 1);
}

static void mlp_gradient_task(const void *job, long group) {
    const mlp_job *j = job;
    const long d = j->d, n = j->n, pieces = (j->rows + ROWS - 1) / ROWS, each = of_group(pieces);
    const long begin = group * each * ROWS, end = begin + each * ROWS < j->rows ? begin + each * ROWS : j->rows;
    float *d_both = j->room + group * j->apart, *d_down = d_both + 2 * n * d, *d_weight = d_down + n * d, *d_bias = d_weight + d;
    float *dm = d_bias + d, *m = dm + ROWS * n, *dgu = m + ROWS * n, *z = dgu + ROWS * 2 * n;
    memset(d_both, 0, (3 * n * d + 2 * d) * sizeof(float));
    for (long first = begin; first < end; first += ROWS) {
        const long rows = end - first < ROWS ? end - first : ROWS;
        const float *x = j->x + first * d, *dy = j->dy + first * d, *norms = j->norms + 2 * first, *gu = j->gu + first * 2 * n;
        times(rows, d, n, dy, j->down, dm, 0);
        gate_gradient_rows(rows, n, gu, j->sigmoid + first * n, dm, m, dgu);
        add_weight_gradient(rows, d, n, dy, m, d_down);
        normalise_again(rows, d, x, j->weight, j->bias, norms, z);
        add_weight_gradient(rows, 2 * n, d, dgu, z, d_both);
        product_job by_gate = {.a = dgu, .b = j->gate, .c = z, .a_row = 2 * n, .a_step = 1, .b_step = d, .c_row = d, .depth = n};
        product_job by_up = by_gate;
        by_up.a += n, by_up.b = j->up, by_up.add = 1;
        product(&by_gate, rows, d);
        product(&by_up, rows, d);
        through_norm(rows, d, z, x, j->weight, norms, dy, j->dx + first * d, d_weight, d_bias);
    }
}

/* p: rows, d_model, d_hidden, bits of eps, then addresses: x, weight, bias, gate, up, down; y, norms, gu, sigmoid. Not 0: out of memory */
long stablessm_gated_mlp(const int64_t *p, parallel_call parallel, long threads) {
    const long d = p[1], n = p[2];
    float *packed = lines(3 * n * d);
    if (!packed) return 1;
    transpose(n, d, (const float *)p[7], NULL, packed, 2 * n);
    transpose(n, d, (const float *)p[8], NULL, packed + n, 2 * n);
    transpose(d, n, (const float *)p[9], NULL, packed + 2 * n * d, d);
    mlp_job j = {
        .rows = p[0], .d = d, .n = n, .eps = double_of(p[3]), .x = (const float *)p[4], .weight = (const float *)p[5],
        .bias = (const float *)p[6], .gate = packed, .down = packed + 2 * n * d,
        .y = (float *)p[10], .norms = (float *)p[11], .gu = (float *)p[12], .sigmoid = (float *)p[13],
    };
    run_tasks(mlp_task, &j, (j.rows + ROWS - 1) / ROWS, parallel, threads);
    free(packed);
    return 0;
}

/* p: as above up to down, then addresses: norms, gu, sigmoid, dy; dx, d_weight, d_bias, d_gate, d_up, d_down */
long stablessm_gated_mlp_gradient(const int64_t *p, parallel_call parallel, long threads) {
    const long d = p[1], n = p[2], pieces = (p[0] + ROWS - 1) / ROWS, each = of_group(pieces), groups = (pieces + each - 1) / each;
    const long apart = 3 * n * d + 2 * d + ROWS * (4 * n + d);
    float *room = lines(groups * apart);
    if (!room) return 1;
    mlp_job j = {
        .rows = p[0], .d = d, .n = n, .x = (const float *)p[4], .weight = (const float *)p[5], .bias = (const float *)p[6],
        .gate = (const float *)p[7], .up = (const float *)p[8], .down = (const float *)p[9], .norms = (float *)p[10],
        .gu = (float *)p[11], .sigmoid = (float *)p[12], .dy = (const float *)p[13], .dx = (float *)p[14], .room = room, .apart = apart,
    };
    run_tasks(mlp_gradient_task, &j, groups, parallel, threads);
    const float *sums = room;
    const long counts[] = {n * d, n * d, n * d, d, d}, places[] = {17, 18, 19, 15, 16};
    for (int i = 0; i < 5; sums += counts[i++]) sum_groups(groups, apart, sums, counts[i], NULL, 1, (float *)p[places[i]]);
    free(room);
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
    normalise(rows, d, j->x + first * d, j->weight, j->bias, j->eps, j->norms + 2 * first, j->z + first * d);
}

static void norm_gradient_task(const void *job, long group) {
    const norm_job *j = job;
    const long d = j->d, each = of_group((j->rows + ROWS - 1) / ROWS) * ROWS, first = group * each;
    const long rows = j->rows - first < each ? j->rows - first : each;
    float *sums = j->sums + 2 * group * d;
    memset(sums, 0, 2 * d * sizeof(float));
    through_norm(rows, d, j->dz + first * d, j->x + first * d, j->weight, j->norms + 2 * first, NULL, j->dx + first * d, sums, sums + d);
}

/* p: rows, d_model, bits of eps, then addresses: x, weight, bias; z, norms */
long stablessm_norm(const int64_t *p, parallel_call parallel, long threads) {
    norm_job j = {.rows = p[0], .d = p[1], .eps = double_of(p[2]), .x = (const float *)p[3], .weight = (const float *)p[4],
                  .bias = (const float *)p[5], .z = (float *)p[6], .norms = (float *)p[7]};
    run_tasks(norm_task, &j, (j.rows + ROWS - 1) / ROWS, parallel, threads);
    return 0;
}

/* p: rows, d_model, bits of eps, then addresses: x, weight, norms, dz; dx, d_weight, d_bias. Not 0: out of memory */
long stablessm_norm_gradient(const int64_t *p, parallel_call parallel, long threads) {
    const long pieces = (p[0] + ROWS - 1) / ROWS, each = of_group(pieces), groups = (pieces + each - 1) / each, d = p[1];
    norm_job j = {.rows = p[0], .d = d, .x = (const float *)p[3], .weight = (const float *)p[4], .norms = (float *)p[5],
                  .dz = (const float *)p[6], .dx = (float *)p[7], .sums = lines(2 * groups * d)};
    if (!j.sums) return 1;
    run_tasks(norm_gradient_task, &j, groups, parallel, threads);
    sum_groups(groups, 2 * d, j.sums, d, NULL, 1, (float *)p[8]);
    sum_groups(groups, 2 * d, j.sums + d, d, NULL, 1, (float *)p[9]);
    free(j.sums);
    return 0;
}
