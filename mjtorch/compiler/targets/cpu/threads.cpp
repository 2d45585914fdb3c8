// Spread the tiles of a batch over threads. Which thread computes a tile changes nothing in it. After tile.h, order.cpp and
// workers.cpp.
namespace {
// Scratch memory is kept between calls: fresh pages cost more than a small batch.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
struct Block {
  char* data;
  int64_t size;
};
const int MOST = 64;
Block spare[MOST];
int spares = 0;

Block borrow(int64_t size) {
  {
    Lock lock(mutex);
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
      Lock lock(mutex);
      while (spares) free(spare[--spares].data);
    }
    data = (char*)aligned_alloc(64, bytes);
  }
  return {data, size};
}

void give_back(Block b) {
  Lock lock(mutex);
  if (spares < MOST)
    spare[spares++] = b;
  else
    free(b.data);
}

// Python's PyEval_SaveThread, PyEval_RestoreThread and PyErr_CheckSignals.
struct Python {
  void* (*release)();
  void (*acquire)(void*);
  int (*check_signals)();
};
const int64_t PAUSE = 50000000;  // [ns] between looks at signals

// [ns]
int64_t now() {
  timespec t;
#if defined(CLOCK_MONOTONIC_COARSE)
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
#else
  clock_gettime(CLOCK_MONOTONIC, &t);
#endif
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// What the threads of a call share.
struct Job {
  Common common;
  Tile tile;
  Array const *in, *out;
  int64_t const* places;
  int64_t worlds, lanes, scratch, common_bytes, tiles;
  char const* known;  // what all worlds have in common
  std::atomic<int64_t> next;
  std::atomic<bool> stop;
  std::atomic<int64_t> helpers;  // that are at work
  pthread_mutex_t door;
  pthread_cond_t done;
};

// How this thread computes.
#if defined(__SSE2__)
unsigned mode() { return __builtin_ia32_stmxcsr(); }
void set_mode(unsigned m) { __builtin_ia32_ldmxcsr(m); }
const unsigned QUICK = 0x8040;  // numbers below the normal range become zero: with them it takes a hundred times as long
#else
unsigned mode() { return 0; }
void set_mode(unsigned) {}
const unsigned QUICK = 0;
#endif

struct Helper : Watch {
  Job& job;
  explicit Helper(Job& job) : Watch{ask}, job(job) {}
  static bool ask(Watch* me) { return static_cast<Helper*>(me)->job.stop; }
};

// The thread that Python waits for. What a signal's handler raises stays there until it is back.
struct Caller : Watch {
  Job& job;
  Python const* python;
  bool listens;  // signals are its business
  unsigned usual;
  void* state;
  int64_t due;
  Caller(Job& job, Python const* python, bool listens)
      : Watch{ask}, job(job), python(python), listens(listens), usual(mode()), state(python->release()), due(0) {}
  static bool ask(Watch* me) {
    Caller& caller = *static_cast<Caller*>(me);
    if (caller.listens) {
      int64_t time = now();
      if (!caller.due) caller.due = time + PAUSE;
      if (time > caller.due) caller.look();
    }
    return caller.job.stop;
  }
  void look() {
    unsigned before = mode();
    set_mode(usual);
    python->acquire(state);
    if (!job.stop && python->check_signals()) job.stop = true;
    state = python->release();
    set_mode(before);
    due = now() + PAUSE;
  }
};

// What all worlds have in common, in memory behind that of a tile.
void prepare(Job& job, Block b, Watch* watch) {
  unsigned before = mode();
  set_mode(before | QUICK);
  job.common(job.in, b.data + job.scratch, watch);
  job.known = b.data + job.scratch;
  set_mode(before);
}

void work(Job& job, Block b, Watch* watch) {
  unsigned before = mode();
  set_mode(before | QUICK);
  for (int64_t k; !watch->stopped(watch) && (k = job.next.fetch_add(1)) < job.tiles;) {
    int64_t first = k * job.lanes, left = job.worlds - first;
    job.tile(job.in, job.out, first, left < job.lanes ? left : job.lanes, job.places, b.data, job.known, watch);
  }
  set_mode(before);
}

void help(void* given) {
  Job& job = *(Job*)given;
  Block b = borrow(job.scratch);
  Helper helper(job);
  if (b.data) {
    work(job, b, &helper);
    give_back(b);
  }
}

void count(void* given) {
  Job& job = *(Job*)given;
  Lock lock(job.door);
  if (!--job.helpers) pthread_cond_signal(&job.done);
}

// Wait for those that help, and look at signals meanwhile.
void wait(Job& job, Caller& caller) {
  awaited([&] { return !job.helpers; });
  pthread_mutex_lock(&job.door);
  while (job.helpers) {
    const timespec end = later(PAUSE);
    if (!pthread_cond_timedwait(&job.done, &job.door, &end) || !caller.listens || job.stop) continue;
    pthread_mutex_unlock(&job.door);
    caller.look();
    pthread_mutex_lock(&job.door);
  }
  pthread_mutex_unlock(&job.door);
}

// Whether there was memory for it. Threads that do not start, or get no memory, are done without.
bool compute(Job& job, Caller& caller, int64_t threads) {
  Block own = borrow(job.scratch + job.common_bytes);
  if (!own.data) return false;
  prepare(job, own, &caller);
  const int64_t wanted = (threads < job.tiles ? threads : job.tiles) - 1;
  job.helpers = wanted > 0 ? wanted : 0;
  int64_t hired = 0;
  while (hired < wanted && hire({help, count, &job})) ++hired;
  if (hired < wanted) {
    Lock lock(job.door);
    job.helpers -= wanted - hired;
  }
  work(job, own, &caller);
  if (hired) wait(job, caller);
  give_back(own);
  return true;
}
}  // namespace

// Called with Python's lock, which is released meanwhile. Where it listens to signals there may be an exception
// afterwards, and results that are not whole. Whether there was memory for it. scratch, common_bytes: multiples of 64
extern "C" int32_t run_batch(Python const* python, int32_t listens, Common common, Tile tile, Array const* in,
                             Array const* out, Order* order, int64_t worlds, int64_t lanes, int64_t scratch,
                             int64_t common_bytes, int64_t threads) {
  if (is_copied()) {
    pthread_mutex_init(&mutex, nullptr);
    spares = 0;  // a thread that is not here may have been changing them
  }
  int64_t tiles = (worlds + lanes - 1) / lanes;
  int64_t const* places = order && order->holds ? order->places : nullptr;
  Job job{common, tile, in, out, places, worlds, lanes, scratch, common_bytes, tiles, nullptr, {0}, {false}, {0}};
  pthread_mutex_init(&job.door, nullptr);
  pthread_cond_init(&job.done, nullptr);
  Caller caller(job, python, listens);
  bool computed = compute(job, caller, threads);
  if (order && computed && !job.stop) arrange(*order, worlds, lanes);
  python->acquire(caller.state);
  pthread_cond_destroy(&job.done);
  pthread_mutex_destroy(&job.door);
  return computed;
}
