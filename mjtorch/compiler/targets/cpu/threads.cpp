// Spread the tiles of a batch over threads. Which thread computes a tile changes nothing in it.
// No library of C++ is needed: not every compiler comes with one that is built.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include <atomic>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

struct Array;
typedef void (*Tile)(Array const*, Array const*, int64_t first, int64_t count, char* scratch);

namespace {
// Scratch memory is kept between calls: fresh pages cost more than a small batch.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
struct Lock {
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};
struct Block {
  char* data;
  int64_t size;
};
const int MOST = 64;
Block spare[MOST];
int spares = 0;

Block borrow(int64_t size) {
  {
    Lock lock;
    for (int i = 0; i < spares; ++i)
      if (spare[i].size >= size) {
        Block b = spare[i];
        for (--spares; i < spares; ++i) spare[i] = spare[i + 1];
        return b;
      }
  }
  int64_t bytes = (size + 63) / 64 * 64 + 64;
  char* data = (char*)aligned_alloc(64, bytes);
  if (!data) {
    {
      Lock lock;
      while (spares) free(spare[--spares].data);
    }
    data = (char*)aligned_alloc(64, bytes);
  }
  return {data, size};
}

void give_back(Block b) {
  Lock lock;
  if (spares < MOST)
    spare[spares++] = b;
  else
    free(b.data);
}

// What the threads of a call share.
struct Job {
  Tile tile;
  Array const *in, *out;
  int64_t worlds, lanes, scratch, tiles;
  std::atomic<int64_t> next;
};

void work(Job& job, Block b) {
#if defined(__SSE2__)
  // Numbers below the normal range become zero: computing with them takes a hundred times as long.
  unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
#endif
  for (int64_t k; (k = job.next.fetch_add(1)) < job.tiles;) {
    int64_t first = k * job.lanes, left = job.worlds - first;
    job.tile(job.in, job.out, first, left < job.lanes ? left : job.lanes, b.data);
  }
  give_back(b);
#if defined(__SSE2__)
  _mm_setcsr(mode);
#endif
}

void* help(void* job) {
  Block b = borrow(((Job*)job)->scratch);
  if (b.data) work(*(Job*)job, b);
  return nullptr;
}
}  // namespace

// Whether there was memory for it. Threads that do not start, or get no memory, are done without.
extern "C" int32_t run_batch(Tile tile, Array const* in, Array const* out, int64_t worlds, int64_t lanes,
                             int64_t scratch, int64_t threads) {
  Job job{tile, in, out, worlds, lanes, scratch, (worlds + lanes - 1) / lanes, {0}};
  Block own = borrow(scratch);
  if (!own.data) return 0;
  int64_t wanted = (threads < job.tiles ? threads : job.tiles) - 1, started = 0;
  pthread_t* others = wanted > 0 ? (pthread_t*)malloc(wanted * sizeof(pthread_t)) : nullptr;
  while (others && started < wanted && !pthread_create(&others[started], nullptr, help, &job)) ++started;
  work(job, own);
  for (int64_t t = 0; t < started; ++t) pthread_join(others[t], nullptr);
  free(others);
  return 1;
}
