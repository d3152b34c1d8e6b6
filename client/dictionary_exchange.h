#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/sha256.h"
#include "client/hit.h"
#include "codec/uniform/dictionary.h"

namespace forebay {

class ClientCore;
class ClientOp;
struct CoreServices;

// Dictionaries as objects in the pool, each under its name: writers put theirs there, and readers
// get those that frames name and that they do not have.
//
// An object is a chain in a namespace of its own (model "forebay.objects"; so each tenant has its
// own): pages of 64 KiB, whose eight tokens are the words of the name, hold its length in 8 bytes
// (little endian), its bytes, and zeros. What comes is believed only where its SHA-256 is its name.
//
// Threads  the core's reactor.
class DictionaryExchange {
 public:
  // Borrows both.
  DictionaryExchange(ClientCore& core, CoreServices& services) : core_(core), services_(services) {}

  // Puts `dictionary` into the pool, unless that was done in the last seconds; `done` (may be null)
  // when it is there or could not be put. It may have been evicted since: so this is for every
  // publish that uses it.
  // `done` comes by `until` at the latest, or by the client's default deadline for each step.
  void Keep(const std::shared_ptr<const Dictionary>& dictionary, Nanos until,
            std::function<void()> done);

  enum class State : uint8_t { kHere, kLoading, kAbsent };
  // Whether this process has the dictionary. If not it is looked for, and `op` woken when that has
  // ended. Not for use inside a transport's callback.
  State Want(const Sha256Digest& name, ClientOp& op);
  // `op` is woken no more.
  void Forget(ClientOp& op);

 private:
  struct Load {
    std::vector<ClientOp*> waiting;
    bool under_way = false;
    Nanos ended_at = 0;  // without success
  };
  using WithSpace = std::function<void(absl::Status)>;
  // Waits no longer than `time`; 0: the default.
  void OpenSpace(Nanos time, WithSpace then);
  void BeginLoad(const Sha256Digest& name);
  void FetchObject(const Sha256Digest& name, std::shared_ptr<Hit> hit);
  void EndLoad(const Sha256Digest& name, const absl::Status& status);

  ClientCore& core_;
  CoreServices& services_;
  uint64_t space_ = 0;  // the objects' namespace, once open
  PageKey root_;
  bool opening_ = false;
  std::vector<WithSpace> waiting_for_space_;
  Nanos kept_at_ = 0;
  bool keeping_ = false;
  std::map<Sha256Digest, Load> loads_;  // that are under way or have failed
  size_t loaded_ = 0;
};

}  // namespace forebay
