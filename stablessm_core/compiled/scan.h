/* The recurrence and its adjoint over neighbouring columns: states in registers, time as the loop. Included once per NAME after
 * vectors.h. Steps are counted in running order: `step` elements lie between two, less than zero where the scan runs backwards.
 *
 * States are carried in double precision and rounded as they are stored: near the boundary the roundings of a state that is carried
 * in single precision add up. A state that is no finite number once it is rounded must go on as that, as it would in the
 * recurrence; whether one is shows at the end of a tile, which is then done again, CAREFUL.
 *
 * The scan is as fast as memory. So what comes next is asked for ahead of its turn, and a LARGE result STREAMs past the caches: a line
 * that is written there need not be read before, a third of the traffic of a forward pass with one vector a. Where rows are no whole
 * lines, a tile of results is made in the first cache, and its lines go from there. */

#if NARROW
/* what was rounded to an infinite value goes on as that */
INLINE W N(as_stored)(W s, V f) {
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

/* h_t = a_t h_{t-1} + b_t for steps [t0, t1). s: the state before t0; at t0 = 0 there is h0 or nothing. Returns whether all are finite */
INLINE int N(forward)(const int K, const int ltv, const int careful, const int stream, const scan_job *j, const scan_row *r, long n, double *s, long t0, long t1) {
    const long a_step = ltv ? j->a_step : 0, b_step = j->b_step, h_step = j->h_step;
    const STORAGE *a = (const STORAGE *)r->a + n + t0 * a_step, *b = (const STORAGE *)r->b + n + t0 * b_step;
    STORAGE *h = (STORAGE *)r->h + n + t0 * h_step;
    W state[MOST];
    N(factor) f[MOST];
    V spoiled[2] = {{0}}; /* two, so that neither is waited for */
    for (int k = 0; k < K; k++) {
        if (!ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 0);
        if (t0) {
            state[k] = N(take)(s + k * WIDTH);
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
        if (careful) state[k] = N(as_stored)(state[k], stored);
        else spoiled[k % 2] += stored * 0;
#endif
    }
    if (!t0) t0 = 1, a += a_step, b += b_step, h += h_step;
    for (long t = t0; t < t1; t++, a += a_step, b += b_step, h += h_step)
#pragma GCC unroll 8 /* whatever the loop's size: states that are not in registers are waited for */
        for (int k = 0; k < K; k++) {
            if (ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 0);
            state[k] = N(multiply_add)(f[k], state[k], N(widen)(N(load)(b + k * WIDTH)));
            V stored = N(narrow)(state[k]);
            stream ? N(stream)(h + k * WIDTH, stored) : N(store)(h + k * WIDTH, stored);
            if (k * WIDTH * sizeof(STORAGE) % 64 == 0) {
                ASK(b + AHEAD * b_step + k * WIDTH);
                if (ltv) ASK(a + AHEAD * a_step + k * WIDTH);
                if (!stream) ASK(h + AHEAD * h_step + k * WIDTH);
            }
#if NARROW
            if (careful) state[k] = N(as_stored)(state[k], stored);
            else spoiled[k % 2] += stored * 0;
#endif
        }
    if (!careful && N(any_nan)(spoiled[0] + spoiled[1])) return 0;
    for (int k = 0; k < K; k++) N(keep)(s + k * WIDTH, state[k]);
    return 1;
}

/* g_t = grad_t + conj(a_{t+1}) g_{t+1} and da_t = conj(h_{t-1}) g_t, from the last step to the first: a tile (t0, t1] makes da of its
 * steps and g of the ones before them, the tile that ends with the last step also that step's g, the one that begins at the first
 * also that step's da. d: grad, at the last step of the tile. s: g_{t1}. A tile's sum of da is added to `sum`. */
INLINE int N(adjoint)(const int K, const int ltv, const int need_da, const int careful, const int stream, const scan_job *j,
                      const scan_row *r, long n, const STORAGE *d, long d_step, double *s, double *sum, long t0, long t1) {
    const long a_step = ltv ? j->a_step : 0, h_step = j->h_step;
    const STORAGE *a = (const STORAGE *)r->a + n + t1 * a_step, *h = need_da ? (const STORAGE *)r->h + n + t1 * h_step : 0;
    STORAGE *g = (STORAGE *)r->g + n + t1 * h_step, *da = ltv && need_da ? (STORAGE *)r->da + n + t1 * h_step : 0;
    W state[MOST], total[MOST];
    N(factor) f[MOST];
    V spoiled[2] = {{0}}; /* two, so that neither is waited for */
    for (int k = 0; k < K; k++) {
        total[k] = (W){0};
        if (!ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 1);
        if (t1 < j->length - 1) {
            state[k] = N(take)(s + k * WIDTH);
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
                ASK(d - AHEAD * d_step + k * WIDTH);
                if (need_da) ASK(h - AHEAD * h_step + k * WIDTH);
                if (!stream) ASK(g - AHEAD * h_step + k * WIDTH);
                if (ltv) ASK(a - AHEAD * a_step + k * WIDTH);
                if (ltv && need_da && !stream) ASK(da - AHEAD * h_step + k * WIDTH);
            }
#if NARROW
            if (careful) state[k] = N(as_stored)(state[k], stored);
            else spoiled[k % 2] += stored * 0;
#endif
        }
        if (ltv) a -= a_step;
        if (ltv && need_da) da -= h_step;
    }
    if (!careful && N(any_nan)(spoiled[0] + spoiled[1])) return 0;
    for (int k = 0; k < K; k++) {
        if (t0 == 0) {
            N(factor) edge = {0};
            if (r->h0) edge = N(factor_of)(N(load)((const STORAGE *)r->h0 + n + k * WIDTH), 1);
            if (ltv && need_da) N(store)(da + k * WIDTH, r->h0 ? N(narrow)(N(multiply)(edge, state[k])) : (V){0});
            else if (need_da && r->h0) total[k] = N(multiply_add)(edge, state[k], total[k]);
            if (ltv) f[k] = N(factor_of)(N(load)(a + k * WIDTH), 1);
            if (r->dh0) N(store)((STORAGE *)r->dh0 + n + k * WIDTH, N(narrow)(N(multiply)(f[k], state[k])));
        }
        N(keep)(s + k * WIDTH, state[k]);
        if (!ltv && need_da) N(keep)(sum + k * WIDTH, N(take)(sum + k * WIDTH) + total[k]);
    }
    return 1;
}

/* each combination is a function of its own, in which the compiler sees constants */
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
/* [block size][ltv], [block size][ltv][need_da]; the first row streams, the last one is careful */
typedef int (*N(forward_call))(const scan_job *, const scan_row *, long, double *, long, long);
typedef int (*N(adjoint_call))(const scan_job *, const scan_row *, long, const STORAGE *, long, double *, double *, long, long);
#define F(K, CAREFUL, STREAM) {N(forward_##K##0##CAREFUL##STREAM), N(forward_##K##1##CAREFUL##STREAM)}
#define A(K, CAREFUL, STREAM) \
    {{N(adjoint_##K##00##CAREFUL##STREAM), N(adjoint_##K##01##CAREFUL##STREAM)}, \
     {N(adjoint_##K##10##CAREFUL##STREAM), N(adjoint_##K##11##CAREFUL##STREAM)}}
ALL(1, 0, 0)
ALL(1, 1, 0)
#if WIDTH == TOP
ALL(2, 0, 0)
ALL(4, 0, 0)
#if MOST == 8
ALL(8, 0, 0)
ALL(8, 0, 1)
static const N(forward_call) N(forwards)[][2] = {F(8, 0, 1), F(8, 0, 0), F(4, 0, 0), F(2, 0, 0), F(1, 0, 0), F(1, 1, 0)};
static const N(adjoint_call) N(adjoints)[][2][2] = {A(8, 0, 1), A(8, 0, 0), A(4, 0, 0), A(2, 0, 0), A(1, 0, 0), A(1, 1, 0)};
#else
ALL(4, 0, 1)
static const N(forward_call) N(forwards)[][2] = {F(4, 0, 1), F(4, 0, 0), F(2, 0, 0), F(1, 0, 0), F(1, 1, 0)};
static const N(adjoint_call) N(adjoints)[][2][2] = {A(4, 0, 1), A(4, 0, 0), A(2, 0, 0), A(1, 0, 0), A(1, 1, 0)};
#endif
#else
static const N(forward_call) N(forwards)[][2] = {F(1, 0, 0), F(1, 0, 0), F(1, 1, 0)};
static const N(adjoint_call) N(adjoints)[][2][2] = {A(1, 0, 0), A(1, 0, 0), A(1, 1, 0)};
#endif
#undef FORWARD
#undef ADJOINT
#undef ALL
#undef F
#undef A

/* K vectors of columns from n on, over one tile */
static void N(tile)(const scan_job *j, const scan_row *r, int size, long n, double *s, double *sum, long t0, long t1, int backward) {
    const int last = sizeof N(forwards) / sizeof *N(forwards) - 1; /* the careful row */
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
    float through[(TILE + 1) * MOST * TOP];
    if (j->activation) {
        const long at = n + t0 * j->h_step;
        deactivate(j->activation, t1 - t0 + 1, K * WIDTH, (const float *)r->grad + n + t0 * j->grad_step, j->grad_step,
                   (const float *)r->h + at, (const float *)r->z + at, j->h_step, through);
        d_step = K * WIDTH, d = through + (t1 - t0) * d_step;
    }
#endif
    if (!N(adjoints)[size][j->ltv][j->need_da](j, r, n, d, d_step, s, sum, t0, t1))
        for (long k = 0; k < K; k++)
            N(adjoints)[last][j->ltv][j->need_da](j, r, n + k * WIDTH, d + k * WIDTH, d_step, s + k * WIDTH, sum + k * WIDTH, t0, t1);
}

/* the address that makes p + t * step one of `room`, which begins with the step that lies lowest in memory */
INLINE void *N(moved)(STORAGE *room, long lowest, long step) { return (void *)((uintptr_t)room - lowest * step * sizeof(STORAGE)); }

/* steps [t0, t1) of whole rows, which lie side by side, from `room` to where they belong, past the caches */
static void N(gathered)(const STORAGE *room, void *result, long step, long t0, long t1) {
    STORAGE *to = (STORAGE *)result + (step < 0 ? t1 - 1 : t0) * step;
    stream_lines((const char *)room, (char *)to, (t1 - t0) * (step < 0 ? -step : step) * sizeof(STORAGE));
}

/* columns [n0, n1) of a row, at least WIDTH and at most COLUMNS of them; what no vector is left for is taken in one more, which
 * overlaps its neighbour and makes the same bits again. Time is cut into tiles, so that all columns of a stretch of time are read while
 * the pages that they lie on are near. */
static void N(columns)(const scan_job *j, const scan_row *r, long n0, long n1, int backward) {
    double s[COLUMNS], s_over[WIDTH], sum[COLUMNS], sum_over[WIDTH];
    const int sizes = sizeof N(forwards) / sizeof *N(forwards) - 1;
    const long whole = (n1 - n0) / WIDTH * WIDTH, over = n1 - n0 - whole, last = j->length - 1;
    if (r->sum) memset(sum, 0, sizeof sum), memset(sum_over, 0, sizeof sum_over);
    const int gather = j->stream == PARTS_OF_LINES;
    STORAGE h_or_g[gather ? (PARTS + 1) * (n1 - n0) : 1], da[gather && r->da ? (PARTS + 1) * (n1 - n0) : 1];
    const long step = j->h_step;
    scan_row at = *r;
    long done = 0;
    do {
        long t0 = done, t1 = done + j->tile < j->length ? done + j->tile : j->length;
        if (backward) t1 = last - done, t0 = t1 - j->tile > 0 ? t1 - j->tile : 0;
        /* the steps whose results this tile makes */
        const long t2 = backward && t1 == last ? t1 + 1 : t1, da0 = t0 ? t0 + 1 : 0, da1 = t1 + 1;
        if (gather && backward) {
            at.g = N(moved)(h_or_g, step < 0 ? t2 - 1 : t0, step);
            at.da = N(moved)(da, step < 0 ? da1 - 1 : da0, step);
        } else if (gather) at.h = N(moved)(h_or_g, step < 0 ? t2 - 1 : t0, step);
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
        if (gather) N(gathered)(h_or_g, backward ? r->g : r->h, step, t0, t2);
        if (gather && backward && j->ltv && j->need_da) N(gathered)(da, r->da, step, da0, da1);
        done = backward ? last - t0 : t1;
    } while (done < (backward ? last : j->length));
    if (r->sum) {
        memcpy(r->sum + n0, sum, whole * sizeof(double));
        memcpy(r->sum + n0 + whole, sum_over + WIDTH - over, over * sizeof(double));
    }
}
