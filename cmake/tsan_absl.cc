// Tells ThreadSanitizer what Abseil's locks order. Debian's Abseil is not built for it, so that all
// that a mutex guards would look like a race. Linked into every program of the preset tsan, whose
// linker turns our calls of these functions into calls of the ones here (--wrap).
#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* object);
void __tsan_release(void* object);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

// Inside, Abseil may evaluate conditions of other waiters, on this thread and under the lock.
class InsideAbseil {
 public:
  explicit InsideAbseil(void* object) : object_(object) {
    __tsan_release(object_);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~InsideAbseil() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    __tsan_acquire(object_);
  }

 private:
  void* const object_;
};

}  // namespace

#define FB_REAL(symbol) __real_##symbol
#define FB_WRAP(symbol) __wrap_##symbol

extern "C" {

void FB_REAL(_ZN4absl7debian35Mutex4LockEv)(absl::Mutex*);
void FB_WRAP(_ZN4absl7debian35Mutex4LockEv)(absl::Mutex* mutex) {
  FB_REAL(_ZN4absl7debian35Mutex4LockEv)(mutex);
  __tsan_acquire(mutex);
}

void FB_REAL(_ZN4absl7debian35Mutex6UnlockEv)(absl::Mutex*);
void FB_WRAP(_ZN4absl7debian35Mutex6UnlockEv)(absl::Mutex* mutex) {
  // Not acquired again afterwards: what others did since is none of ours.
  __tsan_release(mutex);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  FB_REAL(_ZN4absl7debian35Mutex6UnlockEv)(mutex);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

void FB_REAL(_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE)(absl::Mutex*, const absl::Condition&);
void FB_WRAP(_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE)(absl::Mutex* mutex,
                                                             const absl::Condition& condition) {
  const InsideAbseil inside(mutex);
  FB_REAL(_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE)(mutex, condition);
}

void FB_REAL(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE)(absl::CondVar*, absl::Mutex*);
void FB_WRAP(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE)(absl::CondVar* changed,
                                                         absl::Mutex* mutex) {
  const InsideAbseil inside(mutex);
  FB_REAL(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE)(changed, mutex);
}

bool FB_REAL(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE)(
    absl::CondVar*, absl::Mutex*, absl::Duration);
bool FB_WRAP(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE)(
    absl::CondVar* changed, absl::Mutex* mutex, absl::Duration timeout) {
  const InsideAbseil inside(mutex);
  return FB_REAL(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE)(
      changed, mutex, timeout);
}

void FB_REAL(_ZN4absl7debian312Notification6NotifyEv)(absl::Notification*);
void FB_WRAP(_ZN4absl7debian312Notification6NotifyEv)(absl::Notification* notification) {
  __tsan_release(notification);
  FB_REAL(_ZN4absl7debian312Notification6NotifyEv)(notification);
}

void FB_REAL(_ZNK4absl7debian312Notification19WaitForNotificationEv)(const absl::Notification*);
void FB_WRAP(_ZNK4absl7debian312Notification19WaitForNotificationEv)(
    const absl::Notification* notification) {
  FB_REAL(_ZNK4absl7debian312Notification19WaitForNotificationEv)(notification);
  __tsan_acquire(const_cast<absl::Notification*>(notification));
}

bool FB_REAL(_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE)(
    const absl::Notification*, absl::Time);
bool FB_WRAP(_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE)(
    const absl::Notification* notification, absl::Time deadline) {
  const bool notified =
      FB_REAL(_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE)(
          notification, deadline);
  __tsan_acquire(const_cast<absl::Notification*>(notification));
  return notified;
}

}  // extern "C"
