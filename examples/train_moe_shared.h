/* train_moe's formulas that the CPU and the GPU share, one value at a time. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define SHARED static __host__ __device__ inline
#else
#define SHARED static inline
#endif

#define RANDOM_STRIDE UINT64_C(0x9E3779B97F4A7C15)

/* SplitMix64 (Steele, Lea and Flood 2014): one word of state, and good enough to draw weights and windows. The state
 * only counts, so that the n-th number after a state is at hand without those before it. */
SHARED uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += RANDOM_STRIDE;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

SHARED double random_unit(uint64_t *state) { return (double)(random_bits(state) >> 11) * 0x1p-53; }

SHARED int64_t random_below(uint64_t *state, int64_t bound) { return (int64_t)(random_unit(state) * (double)bound); }

/* Where the target byte of training window `number` lies; `context` bytes stand before it. */
SHARED int64_t window_position(uint64_t state, int64_t number, int64_t context, int64_t train_end)
{
    state += RANDOM_STRIDE * (uint64_t)number;
    return context + random_below(&state, train_end - context);
}

/* A short rise, so that Adam's moments settle first, then half a cosine down to zero. */
SHARED double learning_rate(double peak, int64_t step, int64_t steps)
{
    const double done = (double)step / (double)steps, rise = 0.05;
    const double risen = fmin(1.0, (double)(step + 1) / (rise * (double)steps));
    return peak * risen * 0.5 * (1 + cos(3.14159265358979 * done));
}

/* Adam (Kingma and Ba 2015, algorithm 1): the rate with the corrections for the moments' early bias, then one weight.
 * The gradient is cleared for the next step. */
#define ADAM_KEEP_MEAN 0.9
#define ADAM_KEEP_SQUARE 0.99

SHARED double adam_rate(double rate, int64_t step)
{
    const double updates = (double)(step + 1);
    return rate * sqrt(1 - pow(ADAM_KEEP_SQUARE, updates)) / (1 - pow(ADAM_KEEP_MEAN, updates));
}

SHARED void adam(float rate, float *grad, float *mean, float *square, float *value)
{
    const float keep_mean = (float)ADAM_KEEP_MEAN, keep_square = (float)ADAM_KEEP_SQUARE;
    *mean = keep_mean * *mean + (1 - keep_mean) * *grad;
    *square = keep_square * *square + (1 - keep_square) * *grad * *grad;
    *value -= rate * *mean / (sqrtf(*square) + 1e-8f);
    *grad = 0;
}

/* What a step reads and counts where the model is, so that a GPU's replays of one recorded step differ. */
typedef struct step_clock {
    int64_t step;
    float   rate; /* of Adam in this step */
} step_clock;

SHARED void next_step(double peak, int64_t steps, step_clock *clock)
{
    clock->rate = (float)adam_rate(learning_rate(peak, clock->step, steps), clock->step);
    clock->step++;
}

/* Dropout (Srivastava et al. 2014), one of a step's `all`. What it drops follows from the step and a value's number
 * alone: backward drops what forward dropped, a GPU what a CPU does, the next replay something else. */
typedef struct dropout {
    double            rate; /* 0: nothing is dropped */
    uint64_t          random;
    int64_t           number, all;
    const step_clock *clock;
} dropout;

/* What value i is multiplied by: 0, or what makes up for those dropped. */
SHARED double kept(dropout d, int64_t i)
{
    if (d.rate == 0) return 1;
    uint64_t state = d.random + RANDOM_STRIDE * (uint64_t)(d.clock->step * d.all + d.number);
    state = random_bits(&state) + RANDOM_STRIDE * (uint64_t)i;
    return random_unit(&state) < d.rate ? 0 : 1 / (1 - d.rate);
}

/* The BF16 nearest to x, ties to even; NaN is not asked for. */
SHARED uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
