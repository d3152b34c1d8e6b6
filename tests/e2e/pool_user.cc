#include "tests/e2e/pool_user.h"

#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/rpc/admin_client.h"
#include "tests/oracle/page_check.h"

namespace forebay::testing {
namespace {

constexpr uint32_t kPageTokens = 16;
constexpr Nanos kAdminDeadline = 20 * kSecond;

PageStamp StampOf(absl::string_view name, const PageKey& key) {
  return PageStamp::Of(name, key, /*part=*/0, /*writer=*/1, /*attempt=*/1);
}

std::string CountsOf(const v1::StatusReply& status) {
  const v1::SlotCounts& slots = status.slots();
  return absl::StrCat(slots.free(), " free, ", slots.filling(), " filling, ", slots.sealed(),
                      " sealed, ", slots.draining(), " draining, ", slots.quarantine(),
                      " in quarantine of ", status.slot_count(), "; ", slots.pins(), " pins, ",
                      status.leases(), " leases");
}

}  // namespace

KvLayout SmallLayout() {
  return KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/4, /*head_dim=*/64, DType::kBf16,
                           kPageTokens, /*layers_per_part=*/1);
}

NamespaceSpec SpecNamed(const std::string& model, const KvLayout& layout) {
  NamespaceSpec spec;
  spec.model = model;
  spec.model_revision = "1";
  spec.layout = layout;
  return spec;
}

PageMemory::PageMemory(const KvLayout& page_layout, uint32_t pages)
    : layout(page_layout), page_count(pages), bytes(page_layout.PageBytes() * pages) {
  view = KvView::Contiguous(layout, bytes.data(), page_count);
}

void PageMemory::Fill(absl::string_view name, const std::vector<PageKey>& keys) {
  const size_t page_bytes = layout.PageBytes();
  for (size_t page = 0; page < keys.size(); ++page) {
    FillPage(AsMutableBytes(bytes.data() + page * page_bytes, page_bytes),
             StampOf(name, keys[page]));
  }
}

void PageMemory::Clear() { std::fill(bytes.begin(), bytes.end(), std::byte{0xee}); }

std::string PageMemory::Fault(absl::string_view name, const PageKey& key, uint32_t page) const {
  const size_t page_bytes = layout.PageBytes();
  const PageFinding finding = CheckPage(AsBytes(bytes.data() + page * page_bytes, page_bytes),
                                        PageExpectation::Only(StampOf(name, key)));
  return finding.ok() ? "" : absl::StrCat("page ", page, " is ", finding.ToString());
}

std::vector<uint32_t> FreshTokens(uint32_t token_count) {
  static std::atomic<uint32_t> next{1};
  std::vector<uint32_t> tokens(token_count, next.fetch_add(1));
  for (uint32_t i = 1; i < token_count; ++i) tokens[i] = i;
  return tokens;
}

absl::StatusOr<PoolUser> PoolUser::Open(const Options& options) {
  ClientOptions client_options;
  for (const std::string& daemon : options.daemons) client_options.daemons.push_back({daemon, 1.0});
  client_options.path = options.path;
  client_options.token = options.token;
  client_options.name = "e2e";
  PoolUser user;
  FB_ASSIGN_OR_RETURN(user.client_, PoolClient::Connect(std::move(client_options)));
  FB_ASSIGN_OR_RETURN(user.ns_, user.client_->OpenNamespace(options.spec, options.deadline).Wait());
  user.name_ = absl::StrCat(options.token, "/", options.spec.model);
  return user;
}

std::vector<PageKey> PoolUser::Chain(uint32_t page_count) const {
  const uint32_t page_tokens = spec().layout.page_tokens;
  return PageKeysOf(ns_->root(), FreshTokens(page_count * page_tokens), page_tokens);
}

absl::StatusOr<PublishResult> PoolUser::Publish(const std::vector<PageKey>& keys, Nanos deadline) {
  PageMemory memory(spec().layout, static_cast<uint32_t>(keys.size()));
  memory.Fill(name_, keys);
  PublishOptions options;
  options.deadline = deadline;
  return ns_->Publish(keys, memory.view, options).Wait();
}

absl::StatusOr<uint32_t> PoolUser::HitPages(const std::vector<PageKey>& keys, Nanos deadline) {
  LookupOptions options;
  options.deadline = deadline;
  options.probe = true;
  FB_ASSIGN_OR_RETURN(const PrefixHit hit, ns_->Lookup(keys, options).Wait());
  return hit.page_count();
}

absl::StatusOr<PoolUser::Read> PoolUser::Fetch(const std::vector<PageKey>& keys, Nanos deadline) {
  const SystemClock clock;
  const Nanos until = clock.Now() + deadline;
  LookupOptions lookup;
  lookup.deadline = deadline;
  FB_ASSIGN_OR_RETURN(PrefixHit hit, ns_->Lookup(keys, lookup).Wait());
  Read read;
  read.hit_pages = hit.page_count();
  if (read.hit_pages == 0) return read;
  PageMemory memory(spec().layout, read.hit_pages);
  memory.Clear();
  FetchOptions fetch;
  fetch.deadline = std::max<Nanos>(until - clock.Now(), kMillisecond);
  FB_ASSIGN_OR_RETURN(read.fetch, ns_->Fetch(hit, memory.view, fetch).Wait());
  for (uint32_t page = 0; page < read.fetch.pages.size(); ++page) {
    if (!read.fetch.pages[page]) continue;
    std::string fault = memory.Fault(name_, keys[page], page);
    if (!fault.empty()) read.wrong.push_back(std::move(fault));
  }
  // Where the daemon is gone the lease ends by itself.
  static_cast<void>(hit.Release().Wait());
  return read;
}

absl::Status RoundTrip(const std::string& control, PathChoice path, const std::string& token) {
  constexpr uint32_t kPages = 8;
  constexpr Nanos kDeadline = 20 * kSecond;
  PoolUser::Options options;
  options.daemons = {control};
  options.path = path;
  options.token = token;
  options.spec = SpecNamed("round-trip", SmallLayout());
  FB_ASSIGN_OR_RETURN(PoolUser writer, PoolUser::Open(options));
  FB_ASSIGN_OR_RETURN(PoolUser reader, PoolUser::Open(options));
  const std::vector<PageKey> keys = writer.Chain(kPages);
  FB_ASSIGN_OR_RETURN(const PublishResult published, writer.Publish(keys, kDeadline));
  if (published.pages_stored != kPages) {
    return absl::UnavailableError(absl::StrCat("stored ", published.pages_stored, " of ", kPages,
                                               " pages: ", published.first_error.message()));
  }
  FB_ASSIGN_OR_RETURN(const PoolUser::Read read, reader.Fetch(keys, kDeadline));
  if (!read.wrong.empty()) return absl::DataLossError(read.wrong[0]);
  if (read.fetch.page_count != kPages) {
    return absl::NotFoundError(absl::StrCat("found ", read.hit_pages, " and fetched ",
                                            read.fetch.page_count, " of ", kPages, " pages"));
  }
  const uint64_t bytes = SmallLayout().PageBytes() * kPages;
  const uint64_t on_path = path == PathChoice::kLocal ? read.fetch.bytes_local
                           : path == PathChoice::kTcp ? read.fetch.bytes_tcp
                           : path == PathChoice::kUcx ? read.fetch.bytes_ucx
                                                      : read.fetch.bytes;
  if (on_path != bytes) {
    return absl::InternalError(
        absl::StrCat(on_path, " of ", bytes, " bytes came over ", PathName(path)));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::StatusReply> StatusOf(const std::string& control, const std::string& token) {
  return AdminClient(control, token, kAdminDeadline).Status();
}

absl::Status SoundSlots(const v1::StatusReply& status) {
  const v1::SlotCounts& slots = status.slots();
  const uint64_t sum =
      slots.free() + slots.filling() + slots.sealed() + slots.draining() + slots.quarantine();
  if (sum == status.slot_count()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("slots do not add up: ", CountsOf(status)));
}

absl::Status AwaitQuiet(const std::string& control, Nanos limit) {
  const SystemClock clock;
  const Nanos until = clock.Now() + limit;
  for (;;) {
    FB_ASSIGN_OR_RETURN(const v1::StatusReply status, StatusOf(control));
    FB_RETURN_IF_ERROR(SoundSlots(status));
    if (status.slots().filling() == 0 && status.slots().pins() == 0 &&
        status.slots().draining() == 0 && status.leases() == 0) {
      return absl::OkStatus();
    }
    if (clock.Now() >= until) return absl::DeadlineExceededError(CountsOf(status));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string DataAddress(const DaemonProcess& daemon, absl::string_view scheme) {
  for (const std::string& address : daemon.data_addresses()) {
    if (absl::StartsWith(address, absl::StrCat(scheme, ":"))) return address;
  }
  return "";
}

absl::StatusOr<ProgramOutcome> RunProgram(const TemporaryFolder& folder,
                                          std::vector<std::string> command, Nanos limit,
                                          const std::map<std::string, std::string>& environment) {
  static std::atomic<int> run{0};
  ChildProcess::Options options;
  options.command = std::move(command);
  options.environment = environment;
  options.output_file = folder.File(absl::StrCat("program.", ++run, ".out"));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start(options));
  FB_ASSIGN_OR_RETURN(const int wait_status, child->Wait(limit));
  ProgramOutcome outcome;
  if (WIFEXITED(wait_status)) outcome.exit_code = WEXITSTATUS(wait_status);
  FB_ASSIGN_OR_RETURN(outcome.output, ReadTextFile(options.output_file));
  return outcome;
}

}  // namespace forebay::testing
