/* Writes one row of telemetry in one pass over weights, gradients and states. watch/compiled_row_writer.py creates the program:
 * a list of stretches of the row's columns, each with its operation and the address that the operation reads. Sums are computed
 * in float64, in which the squares of float32 numbers neither overflow nor underflow. The order of each sum does not depend on
 * the number of threads. */

/* The operations that compute a stretch of columns. watch/row_table.py uses these names, and compiled_row_writer.py reads the
 * number of each operation from the library. */
#define ROW_OPERATIONS(X) \
    X(copy)           /* the numbers at an address */ \
    X(narrow)         /* the float64 numbers at an address, rounded to float32 */ \
    X(take)           /* the numbers at the address in a slot, or 0 if the slot is empty */ \
    X(ratio)          /* |gradient / weight| */ \
    X(magnitude)      /* |gradient| */ \
    X(exp)            /* e^x */ \
    X(largest)        /* the largest |x| in each column of a state, over all rows */ \
    X(row_norms)      /* the norm of each row of several weights */ \
    X(row_ratios)     /* the norm of each row's gradient, divided by the norm of the row */ \
    X(row_magnitudes) /* the norm of each row's gradient */ \
    X(norms)          /* the norm of each weight, then of each gradient, then of all gradients, then of all weights */ \
    X(batch)          /* the sum of the codes of the tensors that are not finite, then the largest |x| of the first tensors */
#define ROW_NUMBER(name) op_##name,
#define ROW_NAME(name) #name " "
enum { ROW_OPERATIONS(ROW_NUMBER) };
const char *const stablessm_row_operations = ROW_OPERATIONS(ROW_NAME);

#define LARGEST_SQUARES 3.40282346638528859812e+38 /* sums above this value count as infinite, as in PyTorch's float32 sums */

enum { PIECES = 5, PART = 3, STRETCH = 4 }; /* how many numbers describe a piece, a part of a list and a stretch */

typedef double row_wide __attribute__((vector_size(LANES * 4)));
typedef float row_narrow __attribute__((vector_size(LANES * 2), aligned(4), may_alias));

static double row_squares(const float *p, long count) {
    row_wide sums[32 / LANES]; /* 16 sums; sum i contains every 16th square, from number i */
    double a[16];
    long i = 0;
    for (int k = 0; k < 32 / LANES; k++) sums[k] = (row_wide){0};
    for (; i + 16 <= count; i += 16)
        for (int k = 0; k < 32 / LANES; k++) {
            row_wide x = __builtin_convertvector(*(const row_narrow *)(p + i + k * (LANES / 2)), row_wide);
            sums[k] += x * x;
        }
    memcpy(a, sums, sizeof a);
    for (int k = 0; k < 8; k++) a[k] += a[k + 8];
    double sum = ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7]));
    for (; i < count; i++) sum += (double)p[i] * p[i];
    return sum;
}

/* the larger number; NaN counts as larger than every number */
INLINE double row_larger(double a, double b) { return b > a || b != b ? b : a; }

/* e^x; an x above 88 counts as 88 */
static float row_exp(float given) {
    double x = given;
    if (x != x) return given;
    if (x > 88) x = 88;
    if (x < -150) return 0;
    long k = (long)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = x - k * 6.93147180369123816490e-01 - k * 1.90821492927058770002e-10, sum = 1, scale;
    for (int n = 13; n; n--) sum = 1 + sum * r / n;
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return (float)(sum * scale);
}

typedef struct {
    const int64_t *pieces, *slots;
    double *found;
} row_job;

/* for one part of a tensor, computes the sum of squares of each piece; stores the largest of these sums, and their total */
static void row_task(const void *given, long index) {
    const row_job *job = given;
    const int64_t *t = job->pieces + PIECES * index, gradient = t[0], offset = t[1], count = t[2], piece = t[3];
    const float *p = (const float *)(intptr_t)job->slots[gradient];
    double largest = 0, total = 0;
    if (p)
        for (long at = 0; at < count; at += piece) {
            double sum = row_squares(p + offset + at, count - at < piece ? count - at : piece);
            total += sum;
            largest = row_larger(largest, sum);
        }
    job->found[2 * index] = largest;
    job->found[2 * index + 1] = total;
}

/* the norm of row i of the weights, or of their gradients; a missing gradient counts as zero */
static float row_norm(const int64_t *list, const int64_t *slots, long i, int gradient) {
    double sum = 0;
    for (long k = 0; k < list[0]; k++) {
        const int64_t *part = list + 1 + PART * k;
        const float *p = (const float *)(intptr_t)(!gradient ? part[0] : part[1] < 0 ? 0 : slots[part[1]]);
        if (p) sum += row_squares(p + i * part[2], part[2]);
    }
    return sum > LARGEST_SQUARES ? __builtin_inff() : (float)__builtin_sqrt(sum);
}

/* The largest |x|; NaN if any x is NaN. The bits of |x|, read as an integer, have the order of |x|, and every NaN is above
 * infinity. */
static float row_magnitude(const int32_t *p, long count) {
    ints most = {0}, x, above;
    int32_t largest = 0;
    float result;
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        memcpy(&x, p + i, sizeof x);
        x &= 0x7fffffff;
        above = x > most;
        most = (x & above) | (most & ~above);
    }
    for (int lane = 0; lane < LANES; lane++) largest = most[lane] > largest ? most[lane] : largest;
    for (; i < count; i++) largest = (p[i] & 0x7fffffff) > largest ? p[i] & 0x7fffffff : largest;
    memcpy(&result, &largest, sizeof result);
    return result;
}

/* p: buffer, cursor, rows of the buffer, columns, norm, slots, list of stretches and its length, list of pieces and its length,
 * buffer for two numbers per piece, index of the first piece of a gradient, number of parameters. A stretch consists of an
 * operation, the number of columns, the address of the data or of a list, and a slot or -1. Slots contain the addresses that
 * change at each step. */
long stablessm_row(const int64_t *p, parallel_call parallel, long threads) {
    int64_t *cursor = (int64_t *)(intptr_t)p[1];
    float *out = (float *)(intptr_t)p[0] + *cursor * p[3];
    const int64_t *slots = (const int64_t *)(intptr_t)p[5], *stretch = (const int64_t *)(intptr_t)p[6];
    const long stretches = p[7], pieces = p[9], gradients = p[11], parameters = p[12];
    row_job job = {(const int64_t *)(intptr_t)p[8], slots, (double *)(intptr_t)p[10]};
    run_tasks(row_task, &job, pieces, parallel, threads);
    for (long c = 0; c < stretches; c++, stretch += STRETCH) {
        const long operation = stretch[0], count = stretch[1];
        const int64_t *list = (const int64_t *)(intptr_t)stretch[2];
        const float *a = (const float *)list;
        const float *b = stretch[3] < 0 ? NULL : (const float *)(intptr_t)slots[stretch[3]];
        switch (operation) {
        case op_copy: memcpy(out, a, count * sizeof *out); break;
        case op_narrow:
            for (long i = 0; i < count; i++) out[i] = (float)((const double *)list)[i];
            break;
        case op_take:
            if (b) memcpy(out, b, count * sizeof *out);
            else memset(out, 0, count * sizeof *out);
            break;
        case op_ratio:
            for (long i = 0; i < count; i++) out[i] = __builtin_fabsf((b ? b[i] : 0) / a[i]);
            break;
        case op_magnitude:
            for (long i = 0; i < count; i++) out[i] = b ? __builtin_fabsf(b[i]) : 0;
            break;
        case op_exp:
            for (long i = 0; i < count; i++) out[i] = row_exp(a[i]);
            break;
        case op_largest:
            memset(out, 0, count * sizeof *out);
            if (b)
                for (long row = 0; row < slots[stretch[3] + 1]; row++, b += count)
                    for (long i = 0; i < count; i++) {
                        float v = __builtin_fabsf(b[i]);
                        out[i] = v > out[i] || v != v ? v : out[i];
                    }
            break;
        case op_row_norms:
            for (long i = 0; i < count; i++) out[i] = row_norm(list, slots, i, 0);
            break;
        case op_row_ratios:
            for (long i = 0; i < count; i++) out[i] = __builtin_fabsf(row_norm(list, slots, i, 1) / row_norm(list, slots, i, 0));
            break;
        case op_row_magnitudes:
            for (long i = 0; i < count; i++) out[i] = row_norm(list, slots, i, 1);
            break;
        case op_norms: {
            double total[2] = {0, 0}, largest = 0;
            for (long i = 0, slot = 0; i < pieces; i++) {
                const int of_gradient = i >= gradients;
                double found = job.found[2 * i];
                if (!of_gradient && found > LARGEST_SQUARES) found = job.found[2 * i + 1] = __builtin_inf();
                total[of_gradient] += job.found[2 * i + 1];
                largest = row_larger(largest, found);
                if (i + 1 == pieces || job.pieces[PIECES * (i + 1) + 4] != slot) {
                    out[slot] = (float)__builtin_sqrt(largest);
                    largest = 0;
                    slot++;
                }
            }
            double norm = __builtin_sqrt(total[1]);
            *(double *)(intptr_t)p[4] = norm;
            out[2 * parameters] = (float)norm;
            out[2 * parameters + 1] = (float)__builtin_sqrt(total[0]);
            break;
        }
        case op_batch:
            out[0] = 0;
            for (long k = 0; k < list[0]; k++) {
                const int64_t *part = list + 1 + PART * k;
                const float largest = row_magnitude((const int32_t *)(intptr_t)part[0], part[1]);
                if (!(largest < __builtin_inff())) out[0] += part[2];
                if (k + 1 < count) out[k + 1] = largest;
            }
            break;
        }
        out += count;
    }
    *cursor = (*cursor + 1) % p[2];
    return 0;
}
