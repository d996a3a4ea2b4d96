/* Causal convolutions over time, c_t = sum_{s <= t} a_s b_{t-s}, computed as they are written, without a Fourier transform.
 * Included once per dtype.
 *
 * A task convolves as many pairs of sequences as a register holds numbers, one pair per lane. The order of a sum
 * depends only on t. So no result depends on the width of registers, and a NaN in a_s or b_s reaches no c_t with t < s. */

#define M(name) JOIN(name, KIND)
#define SEQUENCES (LANES * 4 / (long)sizeof(REAL)) /* number of pairs in a task */
typedef REAL M(sequences) __attribute__((vector_size(LANES * 4)));
typedef REAL M(unaligned_sequences) __attribute__((vector_size(LANES * 4), aligned(sizeof(REAL)), may_alias));

/* k (length, channels); every other array (rows, length, channels) */
typedef struct {
    long rows, length, channels;
    const REAL *k, *x, *dy;
    REAL *y, *dx, *dk_rows; /* dk_rows: the gradient of k from each row */
    int *failed; /* set to 1 if memory ran out */
} M(convolution_job);

/* `length` is a multiple of CONVOLUTION_TILE. Tiles of sums stay in registers. Each turn of the inner loop adds all products of a
 * few b with the a that belong to the tile. Blocks of products are summed first, because shorter sums have smaller rounding
 * errors. */
static NOINLINE void M(convolve)(long length, const M(sequences) *a, const M(sequences) *b, M(sequences) *c) {
    for (long t = 0; t < length; t += CONVOLUTION_TILE) {
        M(sequences) total[CONVOLUTION_TILE], sum[CONVOLUTION_TILE], some_b[CONVOLUTION_STEP];
#pragma GCC unroll 8
        for (int i = 0; i < CONVOLUTION_TILE; i++) total[i] = (M(sequences)){0};
#pragma GCC unroll 8
        for (int j = CONVOLUTION_TILE - 1; j >= 0; j--)
#pragma GCC unroll 8
            for (int i = j; i < CONVOLUTION_TILE; i++) total[i] += a[i - j] * b[t + j];
        for (long end = t; end > 0; end -= CONVOLUTION_BLOCK) {
#pragma GCC unroll 8
            for (int i = 0; i < CONVOLUTION_TILE; i++) sum[i] = (M(sequences)){0};
            for (long first = end - CONVOLUTION_STEP; first >= 0 && first >= end - CONVOLUTION_BLOCK; first -= CONVOLUTION_STEP) {
#pragma GCC unroll 4
                for (int j = 0; j < CONVOLUTION_STEP; j++) some_b[j] = b[first + j];
#pragma GCC unroll 16
                for (int d = 1 - CONVOLUTION_STEP; d < CONVOLUTION_TILE; d++)
#pragma GCC unroll 4
                    for (int j = 0; j < CONVOLUTION_STEP; j++)
                        if (d + j >= 0 && d + j < CONVOLUTION_TILE) sum[d + j] += a[t - first + d] * some_b[j];
            }
#pragma GCC unroll 8
            for (int i = 0; i < CONVOLUTION_TILE; i++) total[i] += sum[i];
        }
#pragma GCC unroll 8
        for (int i = 0; i < CONVOLUTION_TILE; i++) c[t + i] = total[i];
    }
}

/* the sequences of a task that belong to one row: the first of them, its lane and their number */
typedef struct {
    long first, lane, count;
} M(piece);

INLINE M(piece) M(piece_from)(const M(convolution_job) *j, long index, long lane) {
    const long sequence = index * SEQUENCES + lane, row = sequence / j->channels, channel = sequence % j->channels;
    long count = j->channels - channel;
    if (row >= j->rows) count = 0;
    else if (count > SEQUENCES - lane) count = SEQUENCES - lane;
    return (M(piece)){row * j->length * j->channels + channel, lane, count};
}

#define COPY_PIECE(to, from) \
    if (s.count == SEQUENCES) *(M(unaligned_sequences) *)(to) = *(const M(unaligned_sequences) *)(from); \
    else \
        for (long i = 0; i < s.count; i++) (to)[i] = (from)[i];

/* lane by lane, the sequences of task `index`, followed by zeros up to a whole tile; `shared` if all rows share the array */
static void M(gather)(const M(convolution_job) *j, long index, const REAL *from, int shared, int reverse, M(sequences) *to) {
    const long length = j->length, channels = j->channels;
    const int full = (index + 1) * SEQUENCES <= j->rows * channels;
    const long known = full ? length : 0;
    memset(to + known, 0, (CONVOLUTION_ROOM(length) - known) * sizeof *to);
    for (M(piece) s = M(piece_from)(j, index, 0); s.count; s = M(piece_from)(j, index, s.lane + s.count)) {
        const REAL *p = from + (shared ? s.first % channels : s.first);
        for (long t = 0; t < length; t++) {
            const REAL *source = p + (reverse ? length - 1 - t : t) * channels;
            REAL *target = (REAL *)(to + t) + s.lane;
            COPY_PIECE(target, source)
        }
    }
}

static void M(scatter)(const M(convolution_job) *j, long index, const M(sequences) *from, int reverse, REAL *to) {
    const long length = j->length, channels = j->channels;
    for (M(piece) s = M(piece_from)(j, index, 0); s.count; s = M(piece_from)(j, index, s.lane + s.count))
        for (long t = 0; t < length; t++) {
            const REAL *source = (const REAL *)(from + t) + s.lane;
            REAL *target = to + s.first + (reverse ? length - 1 - t : t) * channels;
            COPY_PIECE(target, source)
        }
}

/* y_t = sum_s k_s x_{t-s} */
static void M(convolution_task)(const void *given, long index) {
    const M(convolution_job) *j = given;
    const long room = CONVOLUTION_ROOM(j->length);
    M(sequences) *k = aligned_alloc(64, 3 * room * sizeof *k), *x = k + room, *y = x + room;
    if (!k) {
        __atomic_store_n(j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    M(gather)(j, index, j->k, 1, 0, k);
    M(gather)(j, index, j->x, 0, 0, x);
    M(convolve)(room, k, x, y);
    M(scatter)(j, index, y, 0, j->y);
    free(k);
}

/* dx_t = sum_s k_s dy_{t+s} and dk_s = sum_t x_t dy_{t+s}, which are convolutions with dy in reverse order */
static void M(convolution_gradients_task)(const void *given, long index) {
    const M(convolution_job) *j = given;
    const long room = CONVOLUTION_ROOM(j->length);
    M(sequences) *dy = aligned_alloc(64, 3 * room * sizeof *dy), *with = dy + room, *result = with + room;
    if (!dy) {
        __atomic_store_n(j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    M(gather)(j, index, j->dy, 0, 1, dy);
    if (j->dx) {
        M(gather)(j, index, j->k, 1, 0, with);
        M(convolve)(room, with, dy, result);
        M(scatter)(j, index, result, 1, j->dx);
    }
    if (j->dk_rows) {
        M(gather)(j, index, j->x, 0, 0, with);
        M(convolve)(room, with, dy, result);
        M(scatter)(j, index, result, 1, j->dk_rows);
    }
    free(dy);
}

/* p: rows, length, channels, then addresses: k, x, y. Returns nonzero if memory ran out */
long M(stablessm_convolution)(const int64_t *p, parallel_call parallel, long threads) {
    int failed = 0;
    M(convolution_job) j = {.rows = p[0], .length = p[1], .channels = p[2], .k = (const REAL *)p[3], .x = (const REAL *)p[4],
                            .y = (REAL *)p[5], .failed = &failed};
    run_tasks(M(convolution_task), &j, (j.rows * j.channels + SEQUENCES - 1) / SEQUENCES, parallel, threads);
    return failed;
}

/* p: rows, length, channels, then addresses: k, x, dy; dx and dk, each of them 0 if not wanted. Returns nonzero if memory ran
 * out */
long M(stablessm_convolution_gradients)(const int64_t *p, parallel_call parallel, long threads) {
    int failed = 0;
    const long rows = p[0], numbers = p[1] * p[2];
    REAL *dk = (REAL *)p[7];
    M(convolution_job) j = {.rows = rows, .length = p[1], .channels = p[2], .k = (const REAL *)p[3], .x = (const REAL *)p[4],
                            .dy = (const REAL *)p[5], .dx = (REAL *)p[6], .failed = &failed};
    if (dk && !(j.dk_rows = malloc((rows * numbers + 1) * sizeof(REAL)))) return 1;
    run_tasks(M(convolution_gradients_task), &j, (rows * j.channels + SEQUENCES - 1) / SEQUENCES, parallel, threads);
    for (long first = 0; dk && first < numbers; first += CONVOLUTION_SUMS) { /* the rows are added in order */
        const long count = numbers - first < CONVOLUTION_SUMS ? numbers - first : CONVOLUTION_SUMS;
        double sums[CONVOLUTION_SUMS] = {0};
        for (long row = 0; row < rows; row++)
            for (long i = 0; i < count; i++) sums[i] += j.dk_rows[row * numbers + first + i];
        for (long i = 0; i < count; i++) dk[first + i] = (REAL)sums[i];
    }
    free(j.dk_rows);
    return failed;
}

#undef COPY_PIECE
#undef SEQUENCES
#undef M
#undef REAL
#undef KIND
