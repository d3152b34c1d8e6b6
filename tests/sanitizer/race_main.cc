// race guarded|unguarded: two threads count, with a lock of Abseil or with none.

#include <cstdio>
#include <cstring>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace {

int g_count = 0;
absl::Mutex g_mutex;

void Count(bool guarded) {
  for (int i = 0; i < 1000; ++i) {
    if (guarded) g_mutex.Lock();
    ++g_count;
    if (guarded) g_mutex.Unlock();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool guarded = argc > 1 && std::strcmp(argv[1], "guarded") == 0;
  std::thread other(Count, guarded);
  Count(guarded);
  other.join();
  std::printf("%d\n", g_count);
  return 0;
}
