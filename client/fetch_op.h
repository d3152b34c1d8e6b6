#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "base/checksum.h"
#include "base/sha256.h"
#include "client/buffer_pool.h"
#include "client/client_namespace.h"
#include "client/hit.h"
#include "client/kv_view.h"
#include "codec/codec.h"
#include "proto/accept.h"

namespace forebay {

// Brings pages of a hit into an engine's memory, first layers first, from several daemons at once.
//
// A part whose location was granted is copied from mapped memory under the lease, in slices; every
// other comes by Get, within a window a daemon. Each is judged by the accept rule; one that fails
// is a miss of its page, and what was written in its memory is unspecified.
//
// Frames that are not raw land in memory of ours, and workers decode them into the engine's while
// more arrives; what is decoded counts against the window until then.
//
// It ends only when no transport and no worker can touch the memory any more: at a deadline or a
// cancel, landings that have begun are waited for, and after landing_grace their connections are
// closed.
class FetchOp final : public ClientOp {
 public:
  using Done = std::function<void(absl::StatusOr<FetchResult>)>;
  // A layer is in place for all pages (true), or some page missed it (false). Each layer once.
  using OnLayer = std::function<void(uint32_t layer, bool in_place)>;

  // Requires a view that fits, and [first_page, first_page + page_count) within the hit.
  FetchOp(CoreServices& services, uint64_t id, ClientNamespace& ns, std::shared_ptr<Hit> hit,
          KvView view, uint32_t first_page, uint32_t page_count, Nanos deadline, OnLayer on_layer,
          Done done);
  ~FetchOp() override;

  void Advance(Nanos now) override;
  absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                  uint64_t payload_bytes) override;
  void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) override;
  void OnLanded(DaemonLink& link, uint64_t token, const absl::Status& status) override;

 private:
  using SharedBuffer = std::shared_ptr<BufferPool::Buffer>;
  // One part of one page.
  struct Item {
    uint16_t part = 0;
    uint32_t page = 0;  // of the hit
  };
  // A copy from mapped memory that goes on over several turns.
  struct LocalCopy {
    bool active = false;
    Item item;
    const LeaseGrant* grant = nullptr;
    Bytes frame;
    FrameHeader header;
    std::vector<MutableBytes> runs;
    size_t run = 0;
    size_t run_offset = 0;
    size_t payload_offset = 0;
    RunningChecksum checksum;
    SharedBuffer encoded;  // where a payload that must be decoded is copied to
  };
  // What is to come from one daemon: its pages, part by part.
  struct Stream {
    std::vector<uint32_t> pages;
    size_t next_part = 0;    // in parts_
    size_t next_page = 0;    // in pages
    std::deque<Item> again;  // items whose location was void
    LocalCopy local;
    uint64_t epoch = 0;
    uint64_t outstanding_bytes = 0;
    uint64_t bytes = 0;
    Nanos started_at = 0;
    bool decodes = false;  // something of it was no raw frame
    bool lost = false;
  };
  struct GetRequest {
    uint16_t daemon = 0;
    std::vector<Item> items;
    std::vector<bool> answered;
    size_t unanswered = 0;
  };
  struct LandingItem {
    Item item;
    FrameHeader header;
    Bytes encoded;  // in the record's memory; empty for what lands in the engine's
  };
  // One payload that is arriving, and its checksums, which do not move.
  struct LandingRecord {
    uint16_t daemon = 0;
    std::vector<LandingItem> items;
    std::unique_ptr<RunningChecksum[]> checksums;
    SharedBuffer memory;  // for frames that must be decoded, or were refused
  };
  // An accepted frame that is no raw one.
  struct DecodeItem {
    Item item;
    FrameHeader header;
    Bytes payload;  // in the job's memory
    uint64_t generation = 0;
    const Codec* codec = nullptr;
    std::vector<MutableBytes> runs;  // of the engine's memory
    BufferPool::Buffer whole;        // where those are several
    absl::Status status;
    Nanos took = 0;
  };
  // Frames that one worker decodes.
  struct DecodeJob {
    uint16_t daemon = 0;
    PathChoice path = PathChoice::kAuto;
    SharedBuffer memory;
    std::vector<DecodeItem> items;
    uint64_t raw_bytes = 0;
  };
  bool NextItem(Stream& stream, Item* item);
  void Fill(uint16_t daemon, Nanos now, uint64_t* slice);
  bool BeginLocal(Stream& stream, const Item& item);
  bool ContinueLocal(Stream& stream, uint64_t* slice);
  void EndLocal(Stream& stream);
  void FillByGet(uint16_t daemon, Item item);
  void SendGet(uint16_t daemon, std::vector<Item> items);
  absl::Status PlanLanding(GetRequest& request, const std::vector<wire::GetDataItem>& items,
                           uint64_t payload_bytes, LandingRecord* record, Landing* landing);
  // Frames that wait for the dictionary that they name.
  struct Parked {
    Sha256Digest name;
    DecodeJob job;
  };
  void AddToDecode(const Item& item, const FrameHeader& header, Bytes payload, uint64_t generation,
                   DecodeJob* job);
  void StartDecode(DecodeJob job);
  void AdvanceParked();
  void Decode(DecodeJob& job) const;
  void EndDecode(uint64_t id);
  void GiveMemory(SharedBuffer memory);
  void CountBytes(uint16_t daemon, PathChoice path, uint64_t bytes);
  absl::Status NoteKept(const Item& item, const FrameHeader& header, Bytes payload);
  void Settle(const Item& item, const absl::Status& status, uint64_t generation);
  void Loaded(const Item& item);
  void Missed(const Item& item, const absl::Status& why);
  void CountLayers(const Item& item, bool in_place);
  void ReportBad(const Item& item, uint64_t generation);
  void GiveBack(uint16_t daemon, const Item& item);
  void LoseStream(uint16_t daemon);
  bool Idle() const;
  void BeginEnd(Nanos now);
  void Finish();
  ExpectedFrame Expected(const Item& item) const;

  ClientNamespace& ns_;
  const std::shared_ptr<Hit> hit_;
  const KvView view_;
  const uint32_t first_page_;
  const uint32_t page_count_;
  OnLayer on_layer_;
  Done done_;

  std::vector<uint16_t> parts_;       // held by the view, first layers first
  std::vector<Stream> streams_;       // per daemon
  std::vector<uint32_t> parts_left_;  // per page asked for
  std::vector<uint64_t> layer_left_;  // items that a layer still waits for
  std::vector<bool> layer_told_;
  absl::btree_map<uint64_t, GetRequest> requests_;  // walked in order
  absl::btree_map<uint64_t, LandingRecord> landings_;
  absl::btree_map<uint64_t, std::unique_ptr<DecodeJob>> decodes_;  // workers refer to them
  std::vector<Parked> parked_;
  FetchResult result_;
  bool ending_ = false;
  std::atomic<bool> given_up_{false};  // decoding would be for nobody
  absl::Status end_status_;
};

}  // namespace forebay
