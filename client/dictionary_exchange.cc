#include "client/dictionary_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "client/client_core.h"

namespace forebay {
namespace {

constexpr uint32_t kPageTokens = 8;
constexpr uint32_t kObjectPageBytes = 64 << 10;
constexpr size_t kObjectBytesMax = 16 << 20;
constexpr uint32_t kObjectPagesMax = kObjectBytesMax / kObjectPageBytes;
constexpr size_t kLengthBytes = sizeof(uint64_t);
// How long it may be since a dictionary was last seen to be in the pool.
constexpr Nanos kKeepInterval = 10 * kSecond;
// Until a dictionary that was not there is looked for again.
constexpr Nanos kRetryInterval = kSecond;
// Names come from frames, and so from other writers of the tenant: no more than this for each
// client is taken into memory.
constexpr size_t kLoadsMax = 64;
constexpr size_t kNamesMax = 1024;

NamespaceSpec ObjectsSpec() {
  NamespaceSpec spec;
  spec.model = "forebay.objects";
  spec.model_revision = "1";
  spec.layout.page_tokens = kPageTokens;
  LayerSpec layer;
  layer.attention = AttentionKind::kMqa;
  layer.dtype = DType::kOpaque8;
  layer.kv_heads = 1;
  layer.k_dim = kObjectPageBytes / kPageTokens;
  spec.layout.layers = {layer};
  return spec;
}

std::vector<PageKey> KeysOf(const PageKey& root, const Sha256Digest& name, size_t page_count) {
  std::vector<uint32_t> tokens(page_count * kPageTokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(&tokens[i], name.data() + i % kPageTokens * sizeof(uint32_t), sizeof(uint32_t));
  }
  return PageKeysOf(root, tokens, kPageTokens);
}

std::string Hex(const Sha256Digest& name) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(name.data()), name.size()});
}

absl::StatusOr<Dictionary> DictionaryIn(Bytes object, const Sha256Digest& name) {
  uint64_t length = 0;
  std::memcpy(&length, object.data(), kLengthBytes);
  object.remove_prefix(kLengthBytes);
  if (length > object.size()) {
    return absl::NotFoundError(
        absl::StrCat(length, " bytes, of which the pool has ", object.size()));
  }
  const Bytes bytes = object.first(length);
  if (Sha256({bytes}) != name) return absl::DataLossError("its SHA-256 is not its name");
  return Dictionary::Parse(bytes);
}

}  // namespace

// Opens the namespace once, and calls `then` when it is open or cannot be opened.
void DictionaryExchange::OpenSpace(Nanos time, WithSpace then) {
  if (space_ != 0) return then(absl::OkStatus());
  waiting_for_space_.push_back(std::move(then));
  if (std::exchange(opening_, true)) return;
  core_.OpenNamespace(ObjectsSpec(), time, [this](absl::StatusOr<ClientCore::Opened> opened) {
    opening_ = false;
    if (opened.ok()) {
      space_ = opened->ns;
      root_ = opened->root;
    }
    for (const WithSpace& waiting : std::exchange(waiting_for_space_, {})) {
      waiting(opened.status());
    }
  });
}

void DictionaryExchange::Keep(const std::shared_ptr<const Dictionary>& dictionary, Nanos until,
                              std::function<void()> done) {
  const auto tell = [](const std::function<void()>& whom) {
    if (whom) whom();
  };
  const Nanos now = services_.clock.Now();
  const size_t bytes = dictionary->serialized().size();
  if (keeping_ || (kept_at_ != 0 && now - kept_at_ < kKeepInterval)) return tell(done);
  if (bytes > kObjectBytesMax - kLengthBytes) {
    LogWarning("client.dictionary_too_large", {{"bytes", bytes}});
    kept_at_ = now;
    return tell(done);
  }
  const auto time_left = [this, until] {
    const Nanos most = services_.options.default_deadline;
    return std::clamp<Nanos>(until - services_.clock.Now(), kMillisecond, most);
  };
  keeping_ = true;
  OpenSpace(time_left(), [this, dictionary, bytes, tell, time_left,
                          done = std::move(done)](const absl::Status& open) {
    const auto end = [this, tell, done](const absl::Status& status, uint32_t refused) {
      keeping_ = false;
      kept_at_ = services_.clock.Now();
      if (!status.ok() || refused > 0) {
        LogWarning("client.dictionary_not_kept",
                   {{"pages_refused", refused}, {"why", status.ToString()}});
      }
      tell(done);
    };
    if (!open.ok()) return end(open, 0);
    const uint64_t length = bytes;
    const size_t pages = (kLengthBytes + bytes + kObjectPageBytes - 1) / kObjectPageBytes;
    auto memory = std::make_shared<std::vector<std::byte>>(pages * kObjectPageBytes);
    std::memcpy(memory->data(), &length, kLengthBytes);
    std::memcpy(memory->data() + kLengthBytes, dictionary->serialized().data(), bytes);
    const KvView view =
        KvView::Contiguous(ObjectsSpec().layout, memory->data(), static_cast<uint32_t>(pages));
    PublishOptions options;
    options.deadline = time_left();
    core_.Publish(space_, KeysOf(root_, dictionary->name(), pages), view, options,
                  [end, memory](const absl::StatusOr<PublishResult>& published) {
                    if (!published.ok()) return end(published.status(), 0);
                    end(published->first_error, published->pages_refused);
                  });
  });
}

DictionaryExchange::State DictionaryExchange::Want(const Sha256Digest& name, ClientOp& op) {
  if (DictionaryStore::Default().Find(name) != nullptr) return State::kHere;
  const Nanos now = services_.clock.Now();
  if (loads_.size() >= kNamesMax) {
    std::erase_if(loads_, [](const auto& entry) { return !entry.second.under_way; });
    if (loads_.size() >= kNamesMax) return State::kAbsent;
  }
  Load& load = loads_[name];
  if (!load.under_way) {
    if (load.ended_at != 0 && now - load.ended_at < kRetryInterval) return State::kAbsent;
    if (loaded_ >= kLoadsMax) return State::kAbsent;
    load.under_way = true;
    BeginLoad(name);
    // It may have ended at once.
    if (DictionaryStore::Default().Find(name) != nullptr) return State::kHere;
    if (!loads_[name].under_way) return State::kAbsent;
  }
  std::vector<ClientOp*>& waiting = loads_[name].waiting;
  if (std::find(waiting.begin(), waiting.end(), &op) == waiting.end()) waiting.push_back(&op);
  return State::kLoading;
}

void DictionaryExchange::Forget(ClientOp& op) {
  for (auto& [name, load] : loads_) std::erase(load.waiting, &op);
}

void DictionaryExchange::BeginLoad(const Sha256Digest& name) {
  OpenSpace(0, [this, name](const absl::Status& open) {
    if (!open.ok()) return EndLoad(name, open);
    core_.Lookup(space_, KeysOf(root_, name, kObjectPagesMax), {},
                 [this, name](absl::StatusOr<std::shared_ptr<Hit>> hit) {
                   if (!hit.ok()) return EndLoad(name, hit.status());
                   FetchObject(name, *std::move(hit));
                 });
  });
}

void DictionaryExchange::FetchObject(const Sha256Digest& name, std::shared_ptr<Hit> hit) {
  const uint32_t pages = hit->page_count();
  if (pages == 0) return EndLoad(name, absl::NotFoundError("the pool does not have it"));
  auto memory = std::make_shared<std::vector<std::byte>>(size_t{pages} * kObjectPageBytes);
  const KvView view = KvView::Contiguous(ObjectsSpec().layout, memory->data(), pages);
  core_.Fetch(space_, hit, view, {}, nullptr,
              [this, name, hit, memory, pages](const absl::StatusOr<FetchResult>& fetched) {
                core_.Release(hit, [](const absl::StatusOr<bool>&) {});
                if (!fetched.ok()) return EndLoad(name, fetched.status());
                if (fetched->page_count < pages) return EndLoad(name, fetched->first_error);
                absl::StatusOr<Dictionary> dictionary = DictionaryIn(*memory, name);
                if (dictionary.ok()) {
                  ++loaded_;
                  DictionaryStore::Default().Add(
                      std::make_shared<const Dictionary>(*std::move(dictionary)));
                }
                EndLoad(name, dictionary.status());
              });
}

void DictionaryExchange::EndLoad(const Sha256Digest& name, const absl::Status& status) {
  Load& load = loads_[name];
  for (ClientOp* op : std::exchange(load.waiting, {})) op->WakeUp();
  if (status.ok()) {
    loads_.erase(name);
    return;
  }
  load.under_way = false;
  load.ended_at = services_.clock.Now();
  LogWarning("client.dictionary_absent", {{"name", Hex(name)}, {"why", status.ToString()}});
}

}  // namespace forebay
