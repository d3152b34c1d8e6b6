#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/pool_client.h"
#include "proto/forebay/v1/admin.pb.h"
#include "tests/support/daemon_process.h"

// What every end-to-end test needs: an engine that knows each byte of each page, and an operator
// who counts slots. Real daemons, the real client.
namespace forebay::testing {

// How much later than its deadline a call may end: the turn of a loaded machine.
inline constexpr Nanos kTurnOfTheMachine = kSecond;

// Four layers, a part each; a page is 64 KiB of four parts.
KvLayout SmallLayout();
NamespaceSpec SpecNamed(const std::string& model, const KvLayout& layout);

// `page_count` pages of an engine's memory. Each page says whose it is (tests/oracle).
struct PageMemory {
  PageMemory(const KvLayout& page_layout, uint32_t page_count);

  // What the engine computed for `keys` in the namespace `name`.
  void Fill(absl::string_view name, const std::vector<PageKey>& keys);
  // Nobody's bytes.
  void Clear();
  // "" if page `page` is exactly the page of `key` in `name`; else what it is.
  std::string Fault(absl::string_view name, const PageKey& key, uint32_t page) const;

  KvLayout layout;
  uint32_t page_count;
  std::vector<std::byte> bytes;
  KvView view;
};

// Token ids that no other call of this process gave.
std::vector<uint32_t> FreshTokens(uint32_t token_count);

// One engine: a client and one namespace.
class PoolUser {
 public:
  struct Options {
    std::vector<std::string> daemons;
    PathChoice path = PathChoice::kAuto;
    NamespaceSpec spec = SpecNamed("e2e", SmallLayout());
    std::string token;
    Nanos deadline = 20 * kSecond;  // of opening
  };
  static absl::StatusOr<PoolUser> Open(const Options& options);

  std::vector<PageKey> Chain(uint32_t page_count) const;
  // Publishes what Fill() gives for `keys`.
  absl::StatusOr<PublishResult> Publish(const std::vector<PageKey>& keys, Nanos deadline);
  absl::StatusOr<uint32_t> HitPages(const std::vector<PageKey>& keys, Nanos deadline);

  struct Read {
    FetchResult fetch;
    uint32_t hit_pages = 0;
    std::vector<std::string> wrong;  // pages that the client called right and that are not
  };
  // Looks up, fetches, judges each page that the client calls whole, releases.
  absl::StatusOr<Read> Fetch(const std::vector<PageKey>& keys, Nanos deadline);

  PoolClient& client() { return *client_; }
  PoolNamespace& ns() { return *ns_; }
  const NamespaceSpec& spec() const { return ns_->spec(); }

 private:
  std::unique_ptr<PoolClient> client_;
  std::shared_ptr<PoolNamespace> ns_;
  std::string name_;  // whose pages these are, for the oracle
};

// A chain published and fetched again by two clients of their own: what a daemon that serves does.
// The path must be taken where one is named.
absl::Status RoundTrip(const std::string& control, PathChoice path = PathChoice::kAuto,
                       const std::string& token = "");

absl::StatusOr<v1::StatusReply> StatusOf(const std::string& control, const std::string& token = "");
// Each slot in exactly one state.
absl::Status SoundSlots(const v1::StatusReply& status);
// Waits until nobody uses the daemon: no slot filling, none pinned, no lease; sound all the time.
// DEADLINE_EXCEEDED with the counts.
absl::Status AwaitQuiet(const std::string& control, Nanos limit);

// Of the addresses that `daemon` published, the one with this scheme, scheme and all; or "".
std::string DataAddress(const DaemonProcess& daemon, absl::string_view scheme);

// Runs to its end. DEADLINE_EXCEEDED if it is not there by `limit`.
struct ProgramOutcome {
  int exit_code = -1;  // -1: by a signal
  std::string output;  // stdout and stderr
};
absl::StatusOr<ProgramOutcome> RunProgram(
    const TemporaryFolder& folder, std::vector<std::string> command, Nanos limit,
    const std::map<std::string, std::string>& environment = {});

}  // namespace forebay::testing
