// The few CUDA instructions that encoder.cu uses, on the CPU: one block at a time, its threads as fibers that
// change places where the kernel waits. Groups must have one member, since blocks run one after the other.

#include <immintrin.h>
#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define DEVICE inline
#define UNROLL
#define UNROLL_TWICE
#define KERNEL static void

struct alignas(16) Four {
    u32 x, y, z, w;
};

namespace host {
constexpr int THREADS = 256;
constexpr int STACK = 256 * 1024;

struct Meeting {
    int arrived = 0;
    long generation = 0;
};

ucontext_t scheduler, fibers[THREADS];
bool done[THREADS];
int thread, block;
unsigned char *memory;
Meeting whole, warps[THREADS / 32];
u32 exchanged[THREADS / 32][32][8];
int counted, count;

// Lets the others run until all of `size` threads have come here.
inline void meet(Meeting &meeting, int size) {
    long generation = meeting.generation;
    if (++meeting.arrived == size) {
        meeting.arrived = 0;
        ++meeting.generation;
        return;
    }
    while (meeting.generation == generation) {
        int self = thread;
        swapcontext(&fibers[self], &scheduler);
    }
}

inline void share(const u32 *values, int number) {
    int warp = thread / 32;
    memcpy(exchanged[warp][thread % 32], values, number * 4);
    meet(warps[warp], 32);
}

inline void shared_over() { meet(warps[thread / 32], 32); }

inline float as_float(u32 v) {
    float f;
    memcpy(&f, &v, 4);
    return f;
}
}  // namespace host

#define THREAD host::thread
#define BLOCK host::block
#define shared host::memory
alignas(16) static unsigned char host_notes[16384];
#define SHARED_NOTES Notes &notes = *(Notes *)host_notes;

inline Four load_shared_state(const u16 *p) { return *(const Four *)p; }
inline void load_shared_state2(const u16 *p, u32 &a, u32 &b) { a = ((const u32 *)p)[0], b = ((const u32 *)p)[1]; }
inline u32 load_shared_state1(const u16 *p) { return *(const u32 *)p; }
inline float load_shared_float(const float *p) { return *p; }
inline int load_shared_exit(const long long *p) { return (int)*p; }
inline Four load_weight(const u16 *p) { return *(const Four *)p; }
inline void load_weight2(const u16 *p, u32 &a, u32 &b) { load_shared_state2(p, a, b); }
inline u32 load_weight1(const u16 *p) { return *(const u32 *)p; }
inline float load_weight_float(const float *p) { return *p; }
inline u32 packed(float low, float high) { return _cvtss_sh(low, 0) | (u32)_cvtss_sh(high, 0) << 16; }
inline void unpacked(u32 v, float &low, float &high) { low = _cvtsh_ss(v & 0xffff), high = _cvtsh_ss(v >> 16); }
inline float __expf(float x) { return expf(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }

// mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane l holds A at rows l / 4 and l / 4 + 8, columns
// l % 4 * 2 and 8 further, B at column l / 4 and those rows, C at A's rows and columns l % 4 * 2.
inline void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    host::share(mine, 6);
    auto &all = host::exchanged[THREAD / 32];
    int lane = THREAD % 32;
    for (int i = 0; i < 4; ++i) {
        int column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            float a[2], b[2];
            int pair = k % 8 / 2, far = k / 8;
            unpacked(all[lane / 4 * 4 + pair][far * 2 + i / 2], a[0], a[1]);
            unpacked(all[column * 4 + pair][4 + far], b[0], b[1]);
            c[i] += a[k % 2] * b[k % 2];
        }
    }
    host::shared_over();
}

inline float from_lane(float v, int mask) {
    u32 mine;
    memcpy(&mine, &v, 4);
    host::share(&mine, 1);
    float other = host::as_float(host::exchanged[THREAD / 32][THREAD % 32 ^ mask][0]);
    host::shared_over();
    return other;
}

inline int fresh(int v) { return v; }
inline void wait_block() { host::meet(host::whole, host::THREADS); }

inline int count_block(bool yes) {
    host::counted += yes;
    wait_block();
    int all = host::counted;
    wait_block();
    host::counted = 0;
    wait_block();
    return all;
}

inline void arrive(u64 *counter, u64 value) { *counter += value; }
inline u64 look(const u64 *counter) { return *counter; }
inline u64 add_and_get(u64 *counter) { return (*counter)++; }

struct Arguments;
static void encode(const Arguments g);
static const Arguments *launched;

static void fiber() {
    encode(*launched);
    host::done[THREAD] = true;
    while (true) swapcontext(&host::fibers[THREAD], &host::scheduler);
}

extern "C" void launch(const Arguments *arguments, int blocks, int shared_bytes) {
    launched = arguments;
    std::vector<unsigned char> memory(shared_bytes + 16), stacks((size_t)host::THREADS * host::STACK);
    host::memory = memory.data() + (16 - (size_t)memory.data() % 16) % 16;
    for (host::block = 0; host::block < blocks; ++host::block) {
        for (int i = 0; i < host::THREADS; ++i) {
            getcontext(&host::fibers[i]);
            host::fibers[i].uc_stack.ss_sp = stacks.data() + (size_t)i * host::STACK;
            host::fibers[i].uc_stack.ss_size = host::STACK;
            host::fibers[i].uc_link = &host::scheduler;
            makecontext(&host::fibers[i], fiber, 0);
            host::done[i] = false;
        }
        for (bool running = true; running;) {
            running = false;
            for (host::thread = 0; host::thread < host::THREADS; ++host::thread)
                if (!host::done[host::thread]) {
                    running = true;
                    swapcontext(&host::scheduler, &host::fibers[host::thread]);
                }
        }
    }
}
