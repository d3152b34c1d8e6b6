#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/checksum.h"
#include "client/buffer_pool.h"
#include "client/client_namespace.h"
#include "client/kv_view.h"
#include "codec/codec.h"
#include "codec/part_plan.h"

namespace forebay {

// Stores pages of a chain: offers each daemon its keys, sends the parts that it wants and the view
// holds, parents before children, and counts what became of them.
//
// A payload is put together in memory that the transport lends, or goes straight from the engine's,
// so the op ends only when no transport and no worker reads that any more, after OnSent of every
// message, and nothing is left to be answered; or after landing_grace by closing the connection.
// What is encoded is so by workers, a Put at a time, while Puts before it cross.
class PublishOp final : public ClientOp {
 public:
  using Done = std::function<void(absl::StatusOr<PublishResult>)>;

  // Requires a view that fits keys.size() pages, and first_page <= keys.size().
  PublishOp(CoreServices& services, uint64_t id, ClientNamespace& ns, std::vector<PageKey> keys,
            KvView view, const PublishOptions& options, Nanos deadline, Done done);

  void Advance(Nanos now) override;
  absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                  uint64_t payload_bytes) override;
  void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) override;
  void OnSent(DaemonLink& link, uint64_t token, const absl::Status& status) override;

 private:
  struct Item {
    uint32_t page = 0;
    uint16_t part = 0;
  };
  enum class Step : uint8_t { kOffering, kSending, kConfirming, kEnded };
  // One daemon's share.
  struct Stream {
    std::vector<uint32_t> pages;
    Step step = Step::kOffering;
    uint32_t offer_begin = 0;  // pages of the offer under way, or of the parts being sent
    uint32_t offer_end = 0;
    uint64_t offer = 0;       // the request, or 0
    std::vector<Item> items;  // wanted of them
    size_t next_item = 0;
    uint64_t epoch = 0;
    uint64_t outstanding_bytes = 0;
    uint32_t puts_unanswered = 0;
    std::vector<const Codec*> codecs;  // per part, for the items wanted
    std::deque<uint64_t> encodings;    // under way or ready, in the order in which they go out
  };
  struct PutRequest {
    uint16_t daemon = 0;
    std::vector<Item> items;
    std::vector<uint32_t> payload_bytes;  // of each
    uint64_t raw_bytes = 0;
  };
  // A payload that a transport still borrows.
  struct Send {
    uint16_t daemon = 0;
    BufferPool::Buffer encoded;
  };
  // Where the payloads of a Put are put together.
  struct PutPayload {
    MutableBytes lent;  // by the transport; empty: ranges of the engine's memory and of `encoded`
    size_t lent_at = 0;
    BufferPool::Buffer encoded;
    PayloadRanges ranges;
  };
  struct EncodeItem {
    Item item;
    const Codec* codec = nullptr;
    PartPlan plan;
    std::vector<MutableBytes> runs;  // of the engine's memory
    MutableBytes to;
    absl::StatusOr<EncodedPart> encoded;  // what came of it
    uint64_t checksum = 0;
    Nanos took = 0;
  };
  // The items of one Put, which a worker encodes.
  struct Encoding {
    uint16_t daemon = 0;
    std::vector<EncodeItem> items;
    uint64_t raw_bytes = 0;
    BufferPool::Buffer memory;
    BufferPool::Buffer gathered;  // for parts whose runs are several
    bool ready = false;
    bool unwanted = false;  // its stream has ended
  };
  // What is known of one page.
  struct Page {
    uint32_t absent_parts = 0;  // not known to be in the pool
    bool refused = false;
  };

  bool LeftOut(const PartSpec& part, uint32_t page) const;
  void SendOffer(uint16_t daemon);
  absl::Status OnOffer(DaemonLink& link, wire::Reader& reader);
  void TakeOffer(uint16_t daemon, const std::vector<uint8_t>& bits);
  void Confirm(Stream& stream, const std::vector<uint8_t>& bits);
  absl::Status OnPutReply(PutRequest& request, wire::Reader& reader);
  void AdvanceStream(uint16_t daemon, uint64_t* slice);
  // True if a message went out.
  bool SendPut(uint16_t daemon, uint64_t* slice);
  bool SendRaw(uint16_t daemon, size_t count, uint64_t raw_bytes);
  void SendItems(uint16_t daemon, PutRequest request, const std::vector<FrameHeader>& headers,
                 PutPayload payload);
  void StartEncoding(uint16_t daemon, size_t count, uint64_t raw_bytes);
  void Encode(Encoding& encoding) const;
  void EndEncoding(uint64_t id);
  void SendEncoded(uint16_t daemon);
  size_t CountPutItems(const Stream& stream, uint64_t bytes_max, uint64_t* bytes,
                       bool* encodes) const;
  void ChooseCodecs(uint16_t daemon);
  PartPlan PlanOf(const Item& item) const;
  FrameHeader AddRaw(const Item& item, uint16_t flags, PutPayload* payload);
  FrameHeader AddEncoded(const EncodeItem& item, PutPayload* payload);
  void Refuse(const Item& item, const absl::Status& why);
  void RefuseRest(uint16_t daemon, const absl::Status& reason);
  // `why`, with the daemon's name.
  absl::Status From(uint16_t daemon, const absl::Status& why) const;
  void EndPut(uint64_t request, const absl::Status& why);
  void BeginEnd(Nanos now);
  void Finish();
  uint32_t OfferPagesMax() const;

  ClientNamespace& ns_;
  const std::vector<PageKey> keys_;
  const KvView view_;
  const PublishOptions options_;
  Done done_;

  std::vector<bool> held_;                                          // per part
  std::vector<Stream> streams_;                                     // per daemon
  std::vector<Page> pages_;                                         // of keys_
  absl::btree_map<uint64_t, PutRequest> puts_;                      // by request
  absl::flat_hash_map<uint64_t, uint64_t> put_of_send_;             // send token -> request
  absl::btree_map<uint64_t, Send> sends_;                           // by send token
  absl::btree_map<uint64_t, std::unique_ptr<Encoding>> encodings_;  // workers refer to them
  PublishResult result_;
  bool ending_ = false;
  std::atomic<bool> given_up_{false};  // encoding would be for nobody
  absl::Status end_status_;
};

}  // namespace forebay
