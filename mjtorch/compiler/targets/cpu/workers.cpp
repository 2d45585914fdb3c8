// Threads that wait for work between calls: to start one, on another core, takes as long as steps of fifty humanoids.
// No library of C++ is needed: not every compiler comes with one that is built. Before threads.cpp.
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {
// Bytes of the stack of a thread: what worlds hold that run one by one lies there, up to 400 KB of it. Some systems give
// threads that are started 512 KB in all, or less.
const size_t STACK = 8 << 20;
// [ns] for which a thread that waits stays awake, as long as nobody else wants its core: to be woken takes some 50,000.
const int64_t AWAKE = 200000;
const int64_t PATIENCE = 5;  // [s] after which a thread that nobody calls ends

struct Lock {
  pthread_mutex_t& held;
  explicit Lock(pthread_mutex_t& m) : held(m) { pthread_mutex_lock(&held); }
  ~Lock() { pthread_mutex_unlock(&held); }
};

// [ns] later than now, by the clock that conditions have
timespec later(int64_t ns) {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += (t.tv_nsec + ns) / 1000000000;
  t.tv_nsec = (t.tv_nsec + ns) % 1000000000;
  return t;
}

// Whether something is the case, looked at for a while.
template <class Condition>
bool awaited(Condition condition) {
  timespec start, t;
  clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    for (int k = 0; k < 50; ++k) {
      if (condition()) return true;
#if defined(__SSE2__)
      __builtin_ia32_pause();
#endif
    }
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &t);
  } while ((t.tv_sec - start.tv_sec) * 1000000000LL + t.tv_nsec - start.tv_nsec < AWAKE);
  return condition();
}

// What a thread is to do: `work` on what is given, and say so by `done`, once it can be called again.
struct Task {
  void (*work)(void*);
  void (*done)(void*);
  void* given;
};
struct Worker {
  Task task;
  std::atomic<bool> called;  // to a task that it has not begun
  pthread_cond_t bell;
  Worker* next;
};

pthread_mutex_t crew = PTHREAD_MUTEX_INITIALIZER;
Worker* idle = nullptr;  // those that wait, the last one first
pid_t process = getpid();

// A process that is a copy of another one has its memory, but none of its threads. Whether it is one, seen for the first
// time; while no other thread is here.
bool is_copied() {
  if (process == getpid()) return false;
  pthread_mutex_init(&crew, nullptr);
  idle = nullptr;
  process = getpid();
  return true;
}

// Wait for the next task. Whether one came in time; if not, nobody else knows of this worker any more.
bool is_called(Worker& w) {
  if (awaited([&] { return w.called.load(); })) return true;
  const timespec end = later(PATIENCE * 1000000000);
  Lock lock(crew);
  while (!w.called)
    if (pthread_cond_timedwait(&w.bell, &crew, &end) && !w.called) {
      Worker** place = &idle;
      while (*place != &w) place = &(*place)->next;
      *place = w.next;
      return false;
    }
  return true;
}

void* serve(void* me) {
  Worker* w = (Worker*)me;
  do {
    w->called = false;
    const Task task = w->task;
    task.work(task.given);
    {
      Lock lock(crew);
      w->next = idle;
      idle = w;
    }
    task.done(task.given);
  } while (is_called(*w));
  pthread_cond_destroy(&w->bell);
  free(w);
  return nullptr;
}

// Have a thread do it. Whether there is one.
bool hire(Task task) {
  {
    Lock lock(crew);
    if (Worker* w = idle) {
      idle = w->next;
      w->task = task;
      w->called = true;
      pthread_cond_signal(&w->bell);
      return true;
    }
  }
  Worker* w = (Worker*)malloc(sizeof(Worker));
  if (!w) return false;
  w->task = task;
  pthread_cond_init(&w->bell, nullptr);
  pthread_attr_t roomy;
  pthread_attr_init(&roomy);
  pthread_attr_setstacksize(&roomy, STACK);
  pthread_attr_setdetachstate(&roomy, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool started = !pthread_create(&thread, &roomy, serve, w);
  pthread_attr_destroy(&roomy);
  if (!started) {
    pthread_cond_destroy(&w->bell);
    free(w);
  }
  return started;
}
}  // namespace
