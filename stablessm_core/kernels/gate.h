/* Products of one half of a row with a gate made of the other half, and the gradients of both halves, each in one pass:
 * m = silu(g) u for rows of 2 n numbers (g, then u), and m = u sigmoid(g) for rows of 2 n numbers (u, then g). */

typedef struct {
    long rows, n;
    const float *gu, *dm;
    float *m, *dgu;
} gate_job;

#define GATE_ROWS 16 /* number of rows in a task */

static void gate_task(const void *job, long index) {
    const gate_job *j = job;
    long end = (index + 1) * GATE_ROWS < j->rows ? (index + 1) * GATE_ROWS : j->rows;
    for (long row = index * GATE_ROWS; row < end; row++) {
        const float *g = j->gu + 2 * row * j->n, *u = g + j->n;
        for (long i = 0; i < j->n; i += LANES)
            store_floats(j->m + row * j->n + i, silu_floats(load_floats(g + i, j->n - i)) * load_floats(u + i, j->n - i), j->n - i);
    }
}

static void gate_gradient_task(const void *job, long index) {
    const gate_job *j = job;
    long end = (index + 1) * GATE_ROWS < j->rows ? (index + 1) * GATE_ROWS : j->rows;
    for (long row = index * GATE_ROWS; row < end; row++) {
        const float *g = j->gu + 2 * row * j->n, *dm = j->dm + row * j->n;
        float *dg = j->dgu + 2 * row * j->n;
        for (long i = 0; i < j->n; i += LANES) {
            const long left = j->n - i;
            floats x = load_floats(g + i, left), d = load_floats(dm + i, left), s = sigmoid_floats(x);
            store_floats(dg + j->n + i, d * (x * s), left);
            store_floats(dg + i, d * load_floats(g + j->n + i, left) * (s * (x * (1.0f - s) + 1.0f)), left);
        }
    }
}

static void glu_task(const void *job, long index) {
    const gate_job *j = job;
    long end = (index + 1) * GATE_ROWS < j->rows ? (index + 1) * GATE_ROWS : j->rows;
    for (long row = index * GATE_ROWS; row < end; row++) {
        const float *u = j->gu + 2 * row * j->n, *g = u + j->n;
        for (long i = 0; i < j->n; i += LANES)
            store_floats(j->m + row * j->n + i, load_floats(u + i, j->n - i) * sigmoid_floats(load_floats(g + i, j->n - i)), j->n - i);
    }
}

static void glu_gradient_task(const void *job, long index) {
    const gate_job *j = job;
    long end = (index + 1) * GATE_ROWS < j->rows ? (index + 1) * GATE_ROWS : j->rows;
    for (long row = index * GATE_ROWS; row < end; row++) {
        const float *u = j->gu + 2 * row * j->n, *g = u + j->n, *dm = j->dm + row * j->n;
        float *du = j->dgu + 2 * row * j->n;
        for (long i = 0; i < j->n; i += LANES) {
            const long left = j->n - i;
            floats d = load_floats(dm + i, left), s = sigmoid_floats(load_floats(g + i, left));
            store_floats(du + i, d * s, left);
            store_floats(du + j->n + i, d * load_floats(u + i, left) * (s * (1.0f - s)), left);
        }
    }
}

/* p: rows, n, addresses of gu and m */
long stablessm_gated(const int64_t *p, parallel_call parallel, long threads) {
    gate_job j = {.rows = p[0], .n = p[1], .gu = (const float *)p[2], .m = (float *)p[3]};
    run_tasks(gate_task, &j, (j.rows + GATE_ROWS - 1) / GATE_ROWS, parallel, threads);
    return 0;
}

/* p: rows, n, addresses of gu, dm and dgu */
long stablessm_gated_gradient(const int64_t *p, parallel_call parallel, long threads) {
    gate_job j = {.rows = p[0], .n = p[1], .gu = (const float *)p[2], .dm = (const float *)p[3], .dgu = (float *)p[4]};
    run_tasks(gate_gradient_task, &j, (j.rows + GATE_ROWS - 1) / GATE_ROWS, parallel, threads);
    return 0;
}

/* p: rows, n, addresses of (u, g) and m */
long stablessm_glu(const int64_t *p, parallel_call parallel, long threads) {
    gate_job j = {.rows = p[0], .n = p[1], .gu = (const float *)p[2], .m = (float *)p[3]};
    run_tasks(glu_task, &j, (j.rows + GATE_ROWS - 1) / GATE_ROWS, parallel, threads);
    return 0;
}

/* p: rows, n, addresses of (u, g), dm and (du, dg) */
long stablessm_glu_gradient(const int64_t *p, parallel_call parallel, long threads) {
    gate_job j = {.rows = p[0], .n = p[1], .gu = (const float *)p[2], .dm = (const float *)p[3], .dgu = (float *)p[4]};
    run_tasks(glu_gradient_task, &j, (j.rows + GATE_ROWS - 1) / GATE_ROWS, parallel, threads);
    return 0;
}
