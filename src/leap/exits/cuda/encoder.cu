// The whole encoder as one kernel, with the exit test inside.
//
// Whole rows are packed into tiles of at most TOKENS tokens, and a group of blocks takes a tile through all layers.
// The blocks of a group share every step's columns among themselves and meet at a counter in global memory between
// steps; groups never wait for one another. So a tile stops when its last row has left, without the host.
//
// A layer has four steps, each one matrix product with what surrounds it:
//
//   attend   norm of the layer before, its pooling and test; queries, keys and values of a head; attention
//   project  attention's output product, residual
//   widen    norm, widening product, GELU
//   narrow   narrowing product, residual
//
// A state is stored before its norm, and whoever reads it norms it on the way: a norm needs no step of its own.
// The steps are short and wait for memory and for one another, so weights are fetched into registers before the
// wait, and products of few tokens are split along their inner dimension over the block's warps.
//
// Given by the compiler: D, F, HEADS, MT (16-token rows of a tile), columns of a block's share of a step
// (PROJECT, WIDEN, NARROW) and the warps that share its columns (ATTEND_NW, PROJECT_NW, WIDEN_NW, NARROW_NW;
// the other factor of the 8 warps splits the inner dimension), BF16. ON_HOST: reference implementations of the
// instructions, for tests without a GPU.
//
// Where a value lies: weights and a batch's activations in global memory, activations read through the second-level
// cache, which all blocks share; a block's copy of the tile and its partial sums in shared memory; the running sums
// of a product and the prefetched weights in registers.
//
// Barriers: wait_block is for the threads of one block; meet is for the blocks of a group. All blocks are resident at
// once (a cooperative launch), or a group would wait for a block that cannot start.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int HEAD = D / HEADS;
constexpr int TOKENS = 16 * MT;
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
// Elements of 2 bytes. D is a multiple of 128, so without the padding every row would begin in the same bank; with it
// row r + 1 begins 16 banks after row r, and the 8 lanes that one 16-byte access serves at a time (two rows, 64 bytes
// each) touch all 32 banks once.
constexpr int LINE = D + 32;  // of the normed tile in shared memory
constexpr int MOST_ROWS = 16;
constexpr float NOTHING = -3e38f;  // a score whose exponential is zero
// A thread has at most 255 registers: a block of 256 threads has the processor's 65,536 to itself (KERNEL below).
// Registers for weights that are fetched before a wait; tiles of many tokens need them for sums.
constexpr int PREFETCH = MT == 1 ? 96 : MT == 2 ? 48 : 32;

// In the order of leap.exits.cuda.compiled.ARGUMENTS, which packs them: 22 pointers, 7 numbers, epsilon.
struct Arguments {
    const long long *ids, *positions;  // [N]
    const int *starts, *tile_rows;     // [B + 1] first tokens; [tiles + 1] first rows
    const int *plan;                   // [L + 1]: 0, 1 to pool the layer, 2 to test it besides
    const float *thresholds;           // [L + 1]
    const u16 *words, *places, *types;
    const u16 *norms;    // [L + 1, 2, D]; index 0 is the embeddings'
    const u16 *weights;  // [L, numbers of a layer]
    const float *maps;   // [heads, D, D], of layer 1 and on
    u16 *states, *middle, *normed, *attended, *wide;  // [tokens, D or F]
    float *recent;       // [patience + 1, B, D], the last pooled vectors
    u64 *counters;       // 16 a group, zero between launches
    float *vectors;      // [B, D], pooled
    float *mapped;       // [B, D], the vectors through the exit heads; untouched where there are none
    long long *exits;    // [B]
    int patience, rows, tiles, groups, members, stop, heads;
    float eps;
};

// ---- Instructions ----

#ifdef ON_HOST
#include "cuda_on_host.hpp"
#else
struct __align__(16) Four {
    u32 x, y, z, w;
};

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define UNROLL_TWICE _Pragma("unroll 2")
#ifdef BF16
#define KIND "bf16"
#else
#define KIND "f16"
#endif

// Activations: written by other blocks of this launch, so read past the first-level cache.
DEVICE Four load_shared_state(const u16 *p) {
    Four v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE void load_shared_state2(const u16 *p, u32 &a, u32 &b) {
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(p));
}
DEVICE u32 load_shared_state1(const u16 *p) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE float load_shared_float(const float *p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
DEVICE int load_shared_exit(const long long *p) {
    long long v;
    asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(v) : "l"(p));
    return (int)v;
}
// Weights never change, so the read-only path (nc) may be taken; each is read once a block, so keeping it in the first
// level would only drive something else out.
DEVICE Four load_weight(const u16 *p) {
    Four v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEVICE void load_weight2(const u16 *p, u32 &a, u32 &b) {
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(p));
}
DEVICE u32 load_weight1(const u16 *p) {
    u32 v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
// Kept in the first level, unlike load_weight's: rows of a tile that left at one layer read the same numbers.
DEVICE float load_weight_float(const float *p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
// Two floats rounded to half precision in one register, `low` in its lower half. PTX names the upper half first.
DEVICE u32 packed(float low, float high) {
    u32 v;
    asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
DEVICE void unpacked(u32 v, float &low, float &high) {
#ifdef BF16
    // bfloat16 is the upper half of a float32.
    low = __uint_as_float(v << 16);
    high = __uint_as_float(v & 0xffff0000u);
#else
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(v));
#endif
}
// c += a b for a [16, 16] and b [16, 8], spread over the warp. With row = lane / 4 and pair = lane % 4 * 2, a lane
// holds a at (row, pair), (row + 8, pair), (row, pair + 8), (row + 8, pair + 8), two neighbouring columns each; b at
// rows pair and pair + 8 of column lane / 4; and c at (row, pair) and (row + 8, pair).
DEVICE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE float from_lane(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
// The same number, unknown to the compiler: what follows from it is not kept in registers from step to step.
DEVICE int fresh(int v) {
    asm volatile("mov.b32 %0, %0;" : "+r"(v));
    return v;
}
DEVICE void wait_block() { __syncthreads(); }
DEVICE int count_block(bool yes) { return __syncthreads_count(yes); }
// Release: what the block wrote before is visible to whoever sees the count. Reached by one thread after wait_block,
// which orders the writes of the block's other threads before it.
DEVICE void arrive(u64 *counter, u64 value) {
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}
// Acquire: what was written before the counts seen here is visible from now on.
DEVICE u64 look(const u64 *counter) {
    u64 v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(counter) : "memory");
    return v;
}
DEVICE u64 add_and_get(u64 *counter) {
    u64 v;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;" : "=l"(v) : "l"(counter) : "memory");
    return v;
}
extern __shared__ __align__(16) unsigned char shared[];
#define SHARED_NOTES __shared__ Notes notes;
#define THREAD ((int)threadIdx.x)
#define BLOCK ((int)blockIdx.x)
// One block a processor: its registers and shared memory are worth more than a second block's overlap.
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#endif

// The sum over a warp's lanes, in every lane.
DEVICE float over_warp(float v) {
    UNROLL
    for (int mask = 16; mask; mask >>= 1) v += from_lane(v, mask);
    return v;
}

// ---- What a block knows of its tile ----

struct Tile {
    int token, tokens, row, rows;  // first and number
    int thread;
};

// Kept in shared memory beside the tile's numbers.
struct Notes {
    u64 seen;
    int starts[MOST_ROWS + 1];    // the rows' first tokens, within the tile
    int owner[TOKENS];            // each token's row, -1 beyond the end
    int left_at[MOST_ROWS];       // the layer at which a row left, 0 while it is there
    float parts[WARPS][MOST_ROWS][3];
};

// Numbers of a layer in `weights`, in the order of leap.exits.cuda.fused._ordered: the matrices for queries, keys and
// values [3 D, D], attention's output [D, D], widening [F, D] and narrowing [D, F]; then the vectors: their biases 3 D
// and D, the attention norm's weight and bias 2 D, the other biases F and D.
constexpr int LAYER = 4 * D * D + 2 * D * F + 7 * D + F;
DEVICE constexpr int most(int a, int b) { return a > b ? a : b; }

// ---- Products ----

// One block's share: [TOKENS, K] times N rows of weights [N, K], by NW warps along N and 8 / NW along K.
//
// A lane reads 8 neighbouring numbers (16 bytes), which are its operands of two instructions. The instruction would
// have them lie in four places; since a sum over k may be taken in any order, k is permuted instead, in the same way
// for both operands: lane % 4 owns columns 8 (lane % 4) to 8 (lane % 4) + 7 of every 32.
//
// Splitting K over warps costs a sum in shared memory at the end, but gives each of the 8 warps loads of its own to
// wait for: with 16 tokens there is too little work along N alone.
template <int K, int N, int NW>
struct Product {
    // KW warps along K; NT tiles of 8 columns a warp; STEPS of 32 columns of K a warp; EARLY of them are fetched before
    // the wait, as many as fit PREFETCH registers (4 a tile and step).
    static constexpr int KW = WARPS / NW;
    static constexpr int NT = N / NW / 8;
    static constexpr int STEPS = (K / 32 + KW - 1) / KW;
    static constexpr int EARLY = STEPS * NT * 4 <= PREFETCH ? STEPS : most(1, PREFETCH / (NT * 4));
    static constexpr int RED = N + 8;  // of a row of partial sums

    // Registers, as all of its indices are known to the compiler once the loops are unrolled.
    Four early[EARLY][NT];
    const int warp, lane;

    DEVICE explicit Product(const Tile &t) : warp(t.thread >> 5), lane(t.thread & 31) {}

    template <class Row>
    DEVICE Four weight(Row row, int step, int tile) const {
        int k = (step * KW + warp / NW) * 32;
        return load_weight(row((warp % NW * NT + tile) * 8 + lane / 4) + k + lane % 4 * 8);
    }

    // The last step is not every warp's where K / 32 is no multiple of KW.
    DEVICE bool has(int step) const { return K / 32 % KW == 0 || step * KW + warp / NW < K / 32; }

    // Row(n) is the n-th of the block's weight rows. Called before `meet`: the loads are on their way while the block
    // waits for the others, and weights do not depend on what those write.
    template <class Row>
    DEVICE void fetch(Row row) {
        UNROLL
        for (int step = 0; step < EARLY; ++step)
            if (has(step)) {
                UNROLL
                for (int tile = 0; tile < NT; ++tile) early[step][tile] = weight(row, step, tile);
            }
    }

    template <class Inputs>
    DEVICE void add(float (&total)[MT][NT][4], const Four (&b)[NT], int step, Inputs inputs) const {
        int k = (step * KW + warp / NW) * 32 + lane % 4 * 8;
        UNROLL
        for (int m = 0; m < MT; ++m) {
            // Rows lane / 4 and lane / 4 + 8, 8 columns each: x and y are the first instruction's columns, z and w the
            // second's.
            Four low = inputs(m * 16 + lane / 4, k), high = inputs(m * 16 + lane / 4 + 8, k);
            UNROLL
            for (int tile = 0; tile < NT; ++tile) {
                multiply(total[m][tile], low.x, high.x, low.y, high.y, b[tile].x, b[tile].y);
                multiply(total[m][tile], low.z, high.z, low.w, high.w, b[tile].z, b[tile].w);
            }
        }
    }

    // Leaves KW partial sums [TOKENS, RED] in `sums`. Inputs(m, k) are 8 numbers of token row m from column k on.
    template <class Row, class Inputs>
    DEVICE void multiply_into(float *sums, Row row, Inputs inputs) {
        float total[MT][NT][4] = {};
        UNROLL
        for (int step = 0; step < EARLY; ++step)
            if (has(step)) add(total, early[step], step, inputs);
        // Weights that had no room in registers. Two steps at a time: the second one's loads overlap the first one's
        // products, and more would spill.
        UNROLL_TWICE
        for (int step = EARLY; step < STEPS; ++step)
            if (has(step)) {
                Four later[NT];
                UNROLL
                for (int tile = 0; tile < NT; ++tile) later[tile] = weight(row, step, tile);
                add(total, later, step, inputs);
            }
        // Each warp along K leaves sums of its own, so that none waits to add to another's; `sum` adds them, always in
        // the same order, so that results do not depend on which warp was first.
        float *out = sums + warp / NW * TOKENS * RED;
        UNROLL
        for (int m = 0; m < MT; ++m)
            UNROLL
            for (int tile = 0; tile < NT; ++tile) {
                float *place = out + (m * 16 + lane / 4) * RED + (warp % NW * NT + tile) * 8 + lane % 4 * 2;
                place[0] = total[m][tile][0];
                place[1] = total[m][tile][1];
                place[8 * RED] = total[m][tile][2];
                place[8 * RED + 1] = total[m][tile][3];
            }
    }

    // Two neighbouring columns of the whole sum.
    DEVICE static void sum(const float *sums, int token, int column, float &a, float &b) {
        a = b = 0;
        UNROLL
        for (int part = 0; part < KW; ++part) {
            const float *place = sums + (part * TOKENS + token) * RED + column;
            a += place[0];
            b += place[1];
        }
    }
};

// attend and widen read the normed tile from shared memory and put their sums behind it; project and narrow read their
// inputs from global memory, so their sums begin where the tile was.
constexpr int TILE_BYTES = TOKENS * LINE * 2;
using Attend = Product<D, 3 * HEAD, ATTEND_NW>;
using Project = Product<D, PROJECT, PROJECT_NW>;
using Widen = Product<D, WIDEN, WIDEN_NW>;
using Narrow = Product<F, NARROW, NARROW_NW>;

// ---- Norms ----

// Norms the tile's rows into `tile` [TOKENS, LINE], rounded; zeros beyond the tile's end. `load(token, column)`
// gives 4 numbers.
template <class Load>
DEVICE void norm_tile(u16 *tile, const Tile &t, const u16 *norm, float eps, Load load) {
    constexpr int EACH = D / 128, AT_ONCE = TOKENS / WARPS < 4 ? TOKENS / WARPS : 4;
    int warp = t.thread >> 5, lane = t.thread & 31;
    // A warp a token, a lane 4 neighbouring columns of every 128: the norm's own numbers are loaded once for all
    // tokens.
    float scale[EACH][4], shift[EACH][4];
    UNROLL
    for (int i = 0; i < EACH; ++i) {
        u32 a, b;
        load_weight2(norm + (i * 32 + lane) * 4, a, b);
        unpacked(a, scale[i][0], scale[i][1]);
        unpacked(b, scale[i][2], scale[i][3]);
        load_weight2(norm + D + (i * 32 + lane) * 4, a, b);
        unpacked(a, shift[i][0], shift[i][1]);
        unpacked(b, shift[i][2], shift[i][3]);
    }
    for (int first = warp; first < TOKENS; first += WARPS * AT_ONCE) {
        // Up to 4 tokens are loaded before the first is normed: their waits for memory overlap.
        float x[AT_ONCE][EACH][4];
        UNROLL
        for (int j = 0; j < AT_ONCE; ++j) {
            int token = first + j * WARPS;
            UNROLL
            for (int i = 0; i < EACH; ++i) {
                if (token < t.tokens) {
                    load(t.token + token, (i * 32 + lane) * 4, x[j][i]);
                } else {
                    x[j][i][0] = x[j][i][1] = x[j][i][2] = x[j][i][3] = 0;
                }
            }
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; ++j) {
            // Mean first, then squares of deviations: the numbers are in registers, so a second pass costs little, and
            // the difference of two large sums would lose digits.
            float mean = 0, square = 0;
            UNROLL
            for (int i = 0; i < EACH; ++i) mean += (x[j][i][0] + x[j][i][1]) + (x[j][i][2] + x[j][i][3]);
            mean = over_warp(mean) / D;
            UNROLL
            for (int i = 0; i < EACH; ++i)
                UNROLL
                for (int c = 0; c < 4; ++c) square += (x[j][i][c] - mean) * (x[j][i][c] - mean);
            float deviation = rsqrtf(over_warp(square) / D + eps);
            u16 *line = tile + (first + j * WARPS) * LINE;
            // Rows beyond the tile's end are zero, and not whatever was there: an infinity would spread through
            // attention's product.
            bool there = first + j * WARPS < t.tokens;
            UNROLL
            for (int i = 0; i < EACH; ++i) {
                float y[4];
                UNROLL
                for (int c = 0; c < 4; ++c)
                    y[c] = there ? (x[j][i][c] - mean) * deviation * scale[i][c] + shift[i][c] : 0;
                u32 *place = (u32 *)(line + (i * 32 + lane) * 4);
                place[0] = packed(y[0], y[1]);
                place[1] = packed(y[2], y[3]);
            }
        }
    }
}

// Four neighbouring numbers of a state that another block wrote.
DEVICE void four(const u16 *p, float (&x)[4]) {
    u32 a, b;
    load_shared_state2(p, a, b);
    unpacked(a, x[0], x[1]);
    unpacked(b, x[2], x[3]);
}

// Four columns of a token's embedding before its norm: word, place and the first token type.
DEVICE void embedded(const Arguments &g, int token, int column, float (&x)[4]) {
    const u16 *tables[3] = {g.words + g.ids[token] * D, g.places + g.positions[token] * D, g.types};
    x[0] = x[1] = x[2] = x[3] = 0;
    UNROLL
    for (int i = 0; i < 3; ++i) {
        u32 a, b;
        float y[4];
        load_weight2(tables[i] + column, a, b);
        unpacked(a, y[0], y[1]);
        unpacked(b, y[2], y[3]);
        UNROLL
        for (int c = 0; c < 4; ++c) x[c] += y[c];
    }
}

// ---- Pooling and the test ----

// Pools `layer` from the normed tile. `keep`: this block also writes the vectors down.
// Leaves each warp's share of the cosine's three sums in the notes.
DEVICE void pool(const Arguments &g, const Tile &t, Notes &notes, const u16 *tile, int layer, bool test, bool keep) {
    // A ring of the last k + 1 pooled vectors: with k + 1 slots, slot (layer + 1) % slots holds layer - k. No block
    // writes it before all have read it: between two layers lie several meets.
    int slots = g.patience + 1;
    float *now = g.recent + (long long)(layer % slots) * g.rows * D;
    const float *before = g.recent + (long long)((layer + 1) % slots) * g.rows * D;
    for (int row = 0; row < t.rows; ++row) {
        float inside = 0, size = 0, size_before = 0;
        int start = notes.starts[row], end = notes.starts[row + 1];
        bool there = notes.left_at[row] == 0;
        // Each thread sums two columns over the row's tokens, in float32 and in the order of tokens: every block that
        // attends comes to the same bits, and so to the same verdict, without asking another.
        for (int pair = t.thread; pair < D / 2; pair += THREADS) {
            long long place = (long long)(t.row + row) * D + pair * 2;
            float a = 0, b = 0, c = 0, d = 0;
            if (test) {
                c = load_shared_float(before + place);
                d = load_shared_float(before + place + 1);
            }
            for (int token = start; token < end; ++token) {
                float x, y;
                unpacked(*(const u32 *)(tile + token * LINE + pair * 2), x, y);
                a += x;
                b += y;
            }
            a /= end - start;
            b /= end - start;
            inside += a * c + b * d;
            size += a * a + b * b;
            size_before += c * c + d * d;
            // The vectors are written at every pooled layer, not only at the exit: the last write before a row leaves
            // is its own.
            if (keep && there) {
                now[place] = a;
                now[place + 1] = b;
                g.vectors[place] = a;
                g.vectors[place + 1] = b;
            }
        }
        if (test) {
            inside = over_warp(inside);
            size = over_warp(size);
            size_before = over_warp(size_before);
            if (t.thread % 32 == 0) {
                float *part = notes.parts[t.thread / 32][row];
                part[0] = inside;
                part[1] = size;
                part[2] = size_before;
            }
        }
    }
}

// The verdict on `layer`, by one thread a row; every block of a group that attends comes to the same.
// Returns how many rows stay.
DEVICE int judge(const Arguments &g, const Tile &t, Notes &notes, int layer, bool keep) {
    bool stays = false;
    if (t.thread < t.rows && notes.left_at[t.thread] == 0) {
        float sums[3] = {};
        // In the warps' order, for the same reason.
        for (int warp = 0; warp < WARPS; ++warp)
            for (int i = 0; i < 3; ++i) sums[i] += notes.parts[warp][t.thread][i];
        // As torch's cosine_similarity: a zero vector is like nothing.
        float cosine = sums[0] / (fmaxf(sqrtf(sums[1]), 1e-8f) * fmaxf(sqrtf(sums[2]), 1e-8f));
        // Not `cosine < threshold`: a cosine that is not a number stays.
        stays = !(cosine >= g.thresholds[layer]);
        if (!stays) {
            notes.left_at[t.thread] = layer;
            if (keep) g.exits[t.row + t.thread] = layer;
        }
    }
    // Also the barrier after which `left_at` may be read and the sums in shared memory overwritten.
    return count_block(stays);
}

// ---- Exit heads ----

// Maps the tile's pooled vectors by the heads of the layers at which their rows left, a row vector times [D, D] in
// float32. The last layer has no head: its vector is copied. Called when every block of the group sees `vectors` and
// `exits`, and nobody needs what lies in shared memory.
//
// The group's blocks share the columns, 8 at a time (32 bytes, what memory moves at least); a block's threads share
// the inner dimension, so that a single row has loads of all threads on their way at once.
DEVICE void map_exits(const Arguments &g, const Tile &t, int rank) {
    constexpr int COLUMNS = 8, SLICES = THREADS / COLUMNS;
    float *sums = (float *)shared;  // [WARPS, MOST_ROWS, COLUMNS]
    int column = t.thread % COLUMNS, slice = t.thread / COLUMNS, warp = t.thread >> 5, lane = t.thread & 31;
    for (int first = rank * COLUMNS; first < D; first += g.members * COLUMNS) {
        for (int row = 0; row < t.rows; ++row) {
            int layer = load_shared_exit(g.exits + t.row + row);
            const float *vector = g.vectors + (long long)(t.row + row) * D;
            float sum = 0;
            if (layer <= g.heads) {
                const float *map = g.maps + (long long)(layer - 1) * D * D + first + column;
                UNROLL
                for (int i = 0; i < D / SLICES; ++i) {
                    int k = i * SLICES + slice;
                    sum += load_shared_float(vector + k) * load_weight_float(map + (long long)k * D);
                }
            }
            // A warp's 4 slices of a column lie 8 lanes apart.
            sum += from_lane(sum, 8);
            sum += from_lane(sum, 16);
            if (lane < COLUMNS) sums[(warp * MOST_ROWS + row) * COLUMNS + column] = sum;
        }
        wait_block();
        for (int place = t.thread; place < t.rows * COLUMNS; place += THREADS) {
            int row = place / COLUMNS;
            long long out = (long long)(t.row + row) * D + first + column;
            float total = 0;
            // In the warps' order, so that a row's vector is the same bits each time.
            UNROLL
            for (int part = 0; part < WARPS; ++part) total += sums[(part * MOST_ROWS + row) * COLUMNS + column];
            g.mapped[out] = load_shared_exit(g.exits + t.row + row) <= g.heads ? total : load_shared_float(g.vectors + out);
        }
        // The next columns' sums take the same place.
        wait_block();
    }
}

// ---- Steps ----

// Attention of one head: a warp for 16 queries. q, k [TOKENS, HEAD + 8], v [HEAD, TOKENS + 8].
DEVICE void mix(const Arguments &g, const Tile &t, const Notes &notes, const u16 *q, const u16 *k, const u16 *v, int head) {
    constexpr int QLINE = HEAD + 8, VLINE = TOKENS + 8;
    int warp = t.thread >> 5, lane = t.thread & 31;
    // With fewer than 128 tokens there are more warps than groups of 16 queries; the others wait at the next barrier.
    if (warp >= MT) return;
    int query = warp * 16 + lane / 4;
    // All scores of 16 queries lie in the warp's registers: row lane / 4 and row lane / 4 + 8, two columns of every 8.
    float scores[TOKENS / 8][4] = {};
    UNROLL
    for (int step = 0; step < HEAD / 32; ++step) {
        int column = step * 32 + lane % 4 * 8;
        Four low = *(const Four *)(q + query * QLINE + column), high = *(const Four *)(q + (query + 8) * QLINE + column);
        UNROLL
        for (int n = 0; n < TOKENS / 8; ++n) {
            Four b = *(const Four *)(k + (n * 8 + lane / 4) * QLINE + column);
            multiply(scores[n], low.x, high.x, low.y, high.y, b.x, b.y);
            multiply(scores[n], low.z, high.z, low.w, high.w, b.z, b.w);
        }
    }
    const float scale = rsqrtf((float)HEAD);
    // Rows share a tile, so a query sees only keys of its own row. Tokens beyond the end see one another, which keeps
    // their sums above zero; nobody stores them.
    int owner[2] = {notes.owner[query], notes.owner[query + 8]};
    float highest[2] = {NOTHING, NOTHING}, total[2] = {};
    UNROLL
    for (int n = 0; n < TOKENS / 8; ++n)
        UNROLL
        for (int i = 0; i < 4; ++i) {
            bool same = notes.owner[n * 8 + lane % 4 * 2 + i % 2] == owner[i / 2];
            scores[n][i] = same ? scores[n][i] * scale : NOTHING;
            highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
        }
    UNROLL
    for (int i = 0; i < 2; ++i) {
        // A query's scores are spread over 4 neighbouring lanes: two exchanges reach them all.
        highest[i] = fmaxf(highest[i], from_lane(highest[i], 1));
        highest[i] = fmaxf(highest[i], from_lane(highest[i], 2));
    }
    UNROLL
    for (int n = 0; n < TOKENS / 8; ++n)
        UNROLL
        for (int i = 0; i < 4; ++i) {
            scores[n][i] = __expf(scores[n][i] - highest[i / 2]);
            total[i / 2] += scores[n][i];
        }
    UNROLL
    for (int i = 0; i < 2; ++i) {
        total[i] += from_lane(total[i], 1);
        total[i] += from_lane(total[i], 2);
        // The division waits until after the product with the values: D / HEADS numbers instead of TOKENS.
        total[i] = 1 / total[i];
    }
    float mixed[HEAD / 8][4] = {};
    UNROLL
    for (int j = 0; j < MT; ++j) {
        // How `multiply` leaves a result is how it takes its first operand, so the scores of two tiles of 8 keys are
        // the operand for 16 keys as they lie, without shared memory.
        u32 a0 = packed(scores[2 * j][0], scores[2 * j][1]), a1 = packed(scores[2 * j][2], scores[2 * j][3]);
        u32 a2 = packed(scores[2 * j + 1][0], scores[2 * j + 1][1]);
        u32 a3 = packed(scores[2 * j + 1][2], scores[2 * j + 1][3]);
        UNROLL
        for (int n = 0; n < HEAD / 8; ++n) {
            const u16 *line = v + (n * 8 + lane / 4) * VLINE + j * 16 + lane % 4 * 2;
            multiply(mixed[n], a0, a1, a2, a3, *(const u32 *)line, *(const u32 *)(line + 8));
        }
    }
    UNROLL
    for (int n = 0; n < HEAD / 8; ++n)
        UNROLL
        for (int i = 0; i < 2; ++i)
            if (query + 8 * i < t.tokens)
                *(u32 *)(g.attended + (long long)(t.token + query + 8 * i) * D + head * HEAD + n * 8 + lane % 4 * 2) =
                    packed(mixed[n][2 * i] * total[i], mixed[n][2 * i + 1] * total[i]);
}

// inputs weight^T + bias + normed, a block of columns, into `out`: the steps project and narrow. The sum is stored
// before its norm; the next step norms it on reading.
template <class Step, int K, int N>
DEVICE void with_residual(
    Step &step, const Arguments &g, const Tile &t, const u16 *inputs, const u16 *weight, const u16 *bias, u16 *out, int item
) {
    float *sums = (float *)shared;
    const u16 *rows = weight + (long long)item * N * K;
    step.multiply_into(
        sums, [&](int n) { return rows + n * K; },
        [&](int token, int k) { return load_shared_state(inputs + (long long)(t.token + token) * K + k); }
    );
    // All partial sums are there.
    wait_block();
    for (int pair = t.thread; pair < TOKENS * N / 2; pair += THREADS) {
        int token = pair / (N / 2), column = item * N + pair % (N / 2) * 2;
        if (token < t.tokens) {
            long long place = (long long)(t.token + token) * D + column;
            float a, b, x, y, c, d;
            unpacked(load_shared_state1(g.normed + place), x, y);
            unpacked(load_weight1(bias + column), c, d);
            Step::sum(sums, token, column - item * N, a, b);
            *(u32 *)(out + place) = packed(a + x + c, b + y + d);
        }
    }
    // The next item's sums take the same place.
    wait_block();
}

// Waits for the whole group; the payloads added so far come back. Arrivals are counted in the low 32 bits, payloads in
// the high ones, so that one atomic addition brings both. The counter is never reset during a launch: `target` grows by
// the group's size at every meeting, and so does what is waited for.
DEVICE u64 meet(Notes &notes, u64 *counter, u32 target, u64 payload) {
    // All threads of the block have written; one of them arrives for the block and polls for it.
    wait_block();
    if (THREAD == 0) {
        arrive(counter, 1 + (payload << 32));
        u64 seen = look(counter);
        while ((u32)seen < target) seen = look(counter);
        notes.seen = seen >> 32;
    }
    wait_block();
    return notes.seen;
}

KERNEL encode(const Arguments g) {
    SHARED_NOTES
    u16 *tile = (u16 *)shared;
    int group = BLOCK / g.members, rank = BLOCK % g.members;
    // 128 bytes a group: groups do not share a cache line. [0] counts meetings, [8] blocks that are done.
    u64 *counter = g.counters + group * 16;
    u64 left_before = 0;
    u32 target = 0;
    // Where there are more tiles than groups, a group takes every g.groups-th one.
    for (int number = group; number < g.tiles; number += g.groups) {
        Tile t;
        t.thread = THREAD;
        t.row = g.tile_rows[number];
        t.rows = g.tile_rows[number + 1] - t.row;
        t.token = g.starts[t.row];
        t.tokens = g.starts[t.row + t.rows] - t.token;
        // The tile before may still be read.
        wait_block();
        if (t.thread <= t.rows) notes.starts[t.thread] = g.starts[t.row + t.thread] - t.token;
        if (t.thread < t.rows) notes.left_at[t.thread] = 0;
        wait_block();
        for (int token = t.thread; token < TOKENS; token += THREADS) {
            // At most 16 rows: a search is cheaper than writing and waiting.
            int owner = -1;
            for (int row = 0; row < t.rows; ++row)
                if (token >= notes.starts[row] && token < notes.starts[row + 1]) owner = row;
            notes.owner[token] = owner;
        }
        // Becomes true when the tile's last row has left; all blocks of the group learn it at the same meeting.
        bool left = false;
        for (int layer = 0; layer < g.stop; ++layer) {
            const u16 *weight = g.weights + (long long)layer * LAYER;
            const u16 *bias = weight + 4 * D * D + 2 * D * F;
            const u16 *norm = g.norms + layer * 2 * D;
            int flags = g.plan[layer];
            u64 payload = 0;
            // ---- attend: a block a head, or several in turn; blocks beyond the number of heads only meet.
            // `fresh`: the addresses of each step are computed again instead of being held in registers through all
            // steps, and the mask tells the compiler the range of a number that it no longer knows.
            {
                t.thread = fresh(t.thread) & (THREADS - 1);
                Attend step(t);
                auto rows_of = [&](int head) {
                    // Rows of the stacked matrix: HEAD each of the head's queries, keys and values.
                    return [=](int n) { return weight + ((long long)(n / HEAD) * D + head * HEAD + n % HEAD) * D; };
                };
                if (rank < HEADS) step.fetch(rows_of(rank));
                // The narrow step before; there is none before the first layer.
                if (layer) target += g.members, meet(notes, counter, target, 0);
                // Every block that attends norms the whole tile for itself: that costs less than a step of its own with
                // a meeting.
                if (rank < HEADS) {
                    if (layer)
                        norm_tile(tile, t, norm, g.eps, [&](int token, int column, float (&x)[4]) {
                            four(g.states + (long long)token * D + column, x);
                        });
                    else
                        norm_tile(tile, t, norm, g.eps, [&](int token, int column, float (&x)[4]) {
                            embedded(g, token, column, x);
                        });
                    wait_block();
                    // The rows' mean at this depth, from the tile as it lies; block 0 writes it down.
                    if (flags) pool(g, t, notes, tile, layer, flags > 1, rank == 0);
                }
                float *sums = (float *)(shared + TILE_BYTES);
                for (int head = rank; head < HEADS && !payload; head += g.members) {
                    if (head != rank) step.fetch(rows_of(head));
                    // The normed states are the residual of `project`; each head's block stores that head's columns of
                    // them.
                    for (int place = t.thread; place < TOKENS * HEAD / 8; place += THREADS) {
                        int token = place / (HEAD / 8), column = head * HEAD + place % (HEAD / 8) * 8;
                        if (token < t.tokens)
                            *(Four *)(g.normed + (long long)(t.token + token) * D + column) =
                                *(const Four *)(tile + token * LINE + column);
                    }
                    step.multiply_into(sums, rows_of(head), [&](int token, int k) {
                        return *(const Four *)(tile + token * LINE + k);
                    });
                    wait_block();
                    constexpr int N = 3 * HEAD, PAIRS = (TOKENS * N / 2 + THREADS - 1) / THREADS;
                    // Queries, keys and values take the place of the sums that they are made of, so they wait in
                    // registers until every thread has read its sums.
                    u32 held[PAIRS];
                    UNROLL
                    for (int i = 0; i < PAIRS; ++i) {
                        int pair = t.thread + i * THREADS, token = pair / (N / 2), column = pair % (N / 2) * 2;
                        if (pair < TOKENS * N / 2) {
                            float a, b, c, d;
                            unpacked(load_weight1(bias + column / HEAD * D + head * HEAD + column % HEAD), c, d);
                            Attend::sum(sums, token, column, a, b);
                            held[i] = packed(a + c, b + d);
                        }
                    }
                    // Judged here, once a layer, since this place needs a barrier anyway, which judge has. A payload of
                    // 1: nobody stays, and there is nothing left to attend to.
                    if (flags > 1 && head == rank)
                        payload = judge(g, t, notes, layer, rank == 0) == 0;
                    else
                        wait_block();
                    if (!payload) {
                        u16 *q = (u16 *)sums, *k = q + TOKENS * (HEAD + 8), *v = k + TOKENS * (HEAD + 8);
                        UNROLL
                        for (int i = 0; i < PAIRS; ++i) {
                            int pair = t.thread + i * THREADS, token = pair / (N / 2), column = pair % (N / 2) * 2;
                            if (pair < TOKENS * N / 2) {
                                if (column < 2 * HEAD) {
                                    *(u32 *)((column < HEAD ? q : k) + token * (HEAD + 8) + column % HEAD) = held[i];
                                } else {
                                    // Values transposed, since the product with the scores sums over tokens and wants
                                    // them next to one another.
                                    v[(column - 2 * HEAD) * (TOKENS + 8) + token] = (u16)held[i];
                                    v[(column - 2 * HEAD + 1) * (TOKENS + 8) + token] = (u16)(held[i] >> 16);
                                }
                            }
                        }
                        wait_block();
                        mix(g, t, notes, q, k, v, head);
                        wait_block();
                    }
                }
            }
            // ---- project: PROJECT columns of attention's output an item, with the residual.
            {
                t.thread = fresh(t.thread) & (THREADS - 1);
                Project step(t);
                const u16 *rows = weight + 3 * D * D;
                if (rank < D / PROJECT) step.fetch([&](int n) { return rows + (long long)(rank * PROJECT + n) * D; });
                target += g.members;
                u64 seen = meet(notes, counter, target, payload);
                // The payloads add up over the tiles of a launch, so what counts is that the sum grew. Blocks without a
                // head learn here that the tile is done, and all of them break at the same place: the number of
                // meetings stays in step.
                left = seen != left_before;
                left_before = seen;
                if (left) break;
                for (int item = rank; item < D / PROJECT; item += g.members) {
                    if (item != rank) step.fetch([&](int n) { return rows + (long long)(item * PROJECT + n) * D; });
                    with_residual<Project, D, PROJECT>(step, g, t, g.attended, rows, bias + 3 * D, g.middle, item);
                }
            }
            // ---- widen: attention's norm, WIDEN columns of the widening product an item, GELU.
            {
                t.thread = fresh(t.thread) & (THREADS - 1);
                Widen step(t);
                const u16 *rows = weight + 4 * D * D;
                if (rank < F / WIDEN) step.fetch([&](int n) { return rows + (long long)(rank * WIDEN + n) * D; });
                target += g.members;
                meet(notes, counter, target, 0);
                if (rank < F / WIDEN) {
                    norm_tile(tile, t, bias + 4 * D, g.eps, [&](int token, int column, float (&x)[4]) {
                        four(g.middle + (long long)token * D + column, x);
                    });
                    wait_block();
                }
                float *sums = (float *)(shared + TILE_BYTES);
                for (int item = rank; item < F / WIDEN; item += g.members) {
                    auto row = [&](int n) { return rows + (long long)(item * WIDEN + n) * D; };
                    if (item != rank) step.fetch(row);
                    // Each block keeps some of the normed columns for the residual.
                    for (int place = t.thread; place < TOKENS * (D / 8); place += THREADS) {
                        int token = place % TOKENS, chunk = place / TOKENS;
                        if (chunk % (F / WIDEN) == item && token < t.tokens)
                            *(Four *)(g.normed + (long long)(t.token + token) * D + chunk * 8) =
                                *(const Four *)(tile + token * LINE + chunk * 8);
                    }
                    step.multiply_into(sums, row, [&](int token, int k) {
                        return *(const Four *)(tile + token * LINE + k);
                    });
                    wait_block();
                    for (int pair = t.thread; pair < TOKENS * WIDEN / 2; pair += THREADS) {
                        int token = pair / (WIDEN / 2), column = pair % (WIDEN / 2) * 2;
                        if (token < t.tokens) {
                            float a, b, c, d;
                            unpacked(load_weight1(bias + 6 * D + item * WIDEN + column), c, d);
                            Widen::sum(sums, token, column, a, b);
                            a += c;
                            b += d;
                            // GELU as BERT has it, by the error function and not by tanh.
                            a = 0.5f * a * (1 + erff(a * 0.70710678f));
                            b = 0.5f * b * (1 + erff(b * 0.70710678f));
                            *(u32 *)(g.wide + (long long)(t.token + token) * F + item * WIDEN + column) = packed(a, b);
                        }
                    }
                    wait_block();
                }
            }
            // ---- narrow: NARROW columns of the narrowing product an item, with the residual; the next layer norms it.
            {
                t.thread = fresh(t.thread) & (THREADS - 1);
                Narrow step(t);
                const u16 *rows = weight + 4 * D * D + D * F;
                if (rank < D / NARROW) step.fetch([&](int n) { return rows + (long long)(rank * NARROW + n) * F; });
                target += g.members;
                meet(notes, counter, target, 0);
                for (int item = rank; item < D / NARROW; item += g.members) {
                    if (item != rank) step.fetch([&](int n) { return rows + (long long)(item * NARROW + n) * F; });
                    with_residual<Narrow, F, NARROW>(step, g, t, g.wide, rows, bias + 6 * D + F, g.states, item);
                }
            }
        }
        // Rows that no test let go, and all rows of a plan without tests: their vectors are the last layer's.
        if (!left) {
            target += g.members;
            meet(notes, counter, target, 0);
            if (rank == 0) {
                norm_tile(tile, t, g.norms + g.stop * 2 * D, g.eps, [&](int token, int column, float (&x)[4]) {
                    four(g.states + (long long)token * D + column, x);
                });
                wait_block();
                pool(g, t, notes, tile, g.stop, false, true);
                if (t.thread < t.rows && notes.left_at[t.thread] == 0) g.exits[t.row + t.thread] = g.stop;
            }
        }
        if (g.heads) {
            // Where the tile's last row left at a test, the meeting at which all learned of it came after block 0's
            // writes.
            if (!left) target += g.members, meet(notes, counter, target, 0);
            map_exits(g, t, rank);
        }
    }
    // The last block of a group to end leaves the counters as it found them, for the next launch. A memset by
    // the host would be one more launch a batch.
    wait_block();
    if (THREAD == 0 && add_and_get(counter + 8) == (u64)g.members - 1) {
        counter[0] = 0;
        counter[8] = 0;
    }
}
