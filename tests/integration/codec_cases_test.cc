// Public reports about codecs, each a test of its name (docs/cases.md), through a node.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/testing/status_matchers.h"
#include "codec/testing/case_parts.h"
#include "proto/accept.h"
#include "tests/integration/client_world.h"

namespace forebay {
namespace {

using ::forebay::testing::CacheBytes;
using ::forebay::testing::ClientWorld;
using ::forebay::testing::EncodedFrame;
using ::forebay::testing::EngineMemory;
using ::forebay::testing::ErrorMax;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::forebay::testing::RelativeError;
using ::forebay::testing::SpecOf;
using ::forebay::testing::Tokens;
using ::forebay::testing::Trip;
using ::forebay::testing::UniformFor;
using ::forebay::testing::WorldClient;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kPageTokens = 64;
constexpr uint32_t kPages = 6;
constexpr QualityBound kAny{QualityClass::kCoarse, QualityClass::kCoarse};

KvLayout Layout() {
  return KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/2, /*head_dim=*/64, DType::kBf16,
                           kPageTokens, /*layers_per_part=*/2);
}

// Latents of 128, and a rotary part of 32.
KvLayout Mla() {
  KvLayout layout = KvLayout::Uniform(2, 1, 128, DType::kBf16, kPageTokens, 2);
  for (LayerSpec& layer : layout.layers) {
    layer.attention = AttentionKind::kMla;
    layer.v_dim = 32;
  }
  return layout;
}

NamespaceSpec SpecWith(const KvLayout& layout, const QualityBound& bound) {
  NamespaceSpec spec = SpecOf(layout);
  spec.quality.bound = bound;
  return spec;
}

std::vector<PageKey> Chain(const PageKey& root, uint32_t pages = kPages) {
  return PageKeysOf(root, Tokens(pages * kPageTokens), kPageTokens);
}

std::unique_ptr<WorldClient> NewClient(ClientWorld& world, const std::string& name,
                                       absl::string_view codec) {
  ClientCoreOptions options;
  options.codec = std::string(codec);
  return world.NewClient(name, std::string(kDefaultTenant), options);
}

void FillNumbers(const KvLayout& layout, EngineMemory& memory, uint64_t seed) {
  PartSpec all = layout.Parts()[0];
  all.raw_bytes = static_cast<uint32_t>(memory.bytes.size());
  const std::vector<std::byte> numbers = CacheBytes(all, seed);
  std::memcpy(memory.bytes.data(), numbers.data(), numbers.size());
}

// What a client reads of the chain; fails the test where that is not all of it.
std::vector<std::byte> Read(WorldClient& client, const KvLayout& layout, uint32_t pages = kPages) {
  EngineMemory target(layout, pages);
  const auto hit = client.Lookup(Chain(client.root, pages));
  EXPECT_TRUE(hit.ok()) << hit.status();
  if (!hit.ok()) return {};
  const auto fetched = client.Fetch(*hit, target.view);
  EXPECT_TRUE(fetched.ok()) << fetched.status();
  if (!fetched.ok()) return {};
  EXPECT_EQ(fetched->page_count, pages) << fetched->first_error;
  return target.bytes;
}

uint64_t Metric(WorldClient& client, absl::string_view name) {
  const std::string text = client.registry.Text();
  const size_t at = text.find(absl::StrCat("\n", name, " "));
  if (at == std::string::npos) {
    ADD_FAILURE() << "no metric " << name;
    return 0;
  }
  return std::stoull(text.substr(at + name.size() + 2));
}

// LMCache#689: with a codec the second request was not found; without one it was.
TEST(LMCache689Test, ACodecChangesNoKeyAndNoHit) {
  const KvLayout layout = Layout();
  ClientWorld world(1);
  EngineMemory source(layout, kPages);
  FillNumbers(layout, source, 1);
  PageKey root;
  for (const auto& codec : CodecRegistry::Default().codecs()) {
    auto writer = NewClient(world, "writer", codec->name());
    NamespaceSpec spec = SpecWith(layout, kAny);
    FB_ASSERT_OK(writer->Open(spec));
    if (root == PageKey()) root = writer->root;
    EXPECT_EQ(writer->root, root) << codec->name();
    // Each codec's pages under a salt of their own.
    spec.salt = std::string(codec->name());
    FB_ASSERT_OK(writer->Open(spec));
    const std::vector<PageKey> keys = Chain(writer->root);
    EXPECT_EQ(writer->Pages(keys), 0u);
    const auto first = writer->Publish(keys, source.view);
    FB_ASSERT_OK(first);
    EXPECT_EQ(first->pages_stored, kPages) << codec->name() << ": " << first->first_error;
    const std::vector<std::byte> read = Read(*writer, layout);
    // Whoever comes next finds them, and puts nothing again, whatever it would publish as.
    for (const char* other : {"raw", "int2", "auto"}) {
      auto reader = NewClient(world, "reader", other);
      FB_ASSERT_OK(reader->Open(spec));
      EXPECT_EQ(reader->Pages(keys), kPages) << codec->name() << " for " << other;
      EXPECT_EQ(Read(*reader, layout), read) << codec->name() << " for " << other;
      const auto again = reader->Publish(keys, source.view);
      FB_ASSERT_OK(again);
      EXPECT_EQ(again->parts_sent, 0u) << codec->name() << " for " << other;
    }
  }
}

// LMCache#717: scores fell, and nobody had asked for a codec with loss.
TEST(LMCache717Test, LossIsAskedForByName) {
  const KvLayout layout = Layout();
  ClientWorld world(1);
  EngineMemory source(layout, kPages);
  FillNumbers(layout, source, 2);
  // A namespace that says nothing is exact, also where the client chooses.
  auto plain = NewClient(world, "plain", "auto");
  FB_ASSERT_OK(plain->Open(SpecOf(layout)));
  FB_ASSERT_OK(plain->Publish(Chain(plain->root), source.view));
  EXPECT_EQ(Read(*plain, layout), source.bytes);
  // Who takes loss shares no page with it; and one request opts out by the contract alone.
  auto lossy = NewClient(world, "lossy", "int4");
  FB_ASSERT_OK(lossy->Open(SpecWith(layout, kAny)));
  EXPECT_EQ(lossy->Pages(Chain(lossy->root)), 0u);
  FB_ASSERT_OK(lossy->Publish(Chain(lossy->root), source.view));
  EXPECT_NE(Read(*lossy, layout), source.bytes);
  EXPECT_EQ(Read(*plain, layout), source.bytes);
  EXPECT_THAT(lossy->Open(SpecOf(layout)).status(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("int4")));
}

// vllm#41343: E5M2 at a scale of 1 corrupted a model in silence.
TEST(Vllm41343Test, ACodecBeyondTheBudgetIsRefusedBeforeAnythingIsPut) {
  ClientWorld world(1);
  auto client = NewClient(world, "client", "fp8_e5m2");
  const QualityBound near{QualityClass::kNear, QualityClass::kNear};
  EXPECT_THAT(client->Open(SpecWith(Layout(), near)).status(),
              HasStatus(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("fp8_e5m2"), HasSubstr("near"))));
  EXPECT_EQ(world.node(0).Status().pages.pages, 0u);
}

// LMCache#1817: a codec was on, and sizes did not change.
TEST(LMCache1817Test, SizesShrinkAndTheMetricsSayByWhom) {
  const KvLayout layout = Layout();
  for (const char* codec : {"int8", "int4", "int2", "lossless", "uniform"}) {
    SCOPED_TRACE(codec);
    ClientWorld world(1);
    ClientCoreOptions options;
    options.codec = codec;
    options.uniform = UniformFor(layout);
    auto client = world.NewClient("client", std::string(kDefaultTenant), options);
    FB_ASSERT_OK(client->Open(SpecWith(layout, kAny)));
    EngineMemory source(layout, kPages);
    FillNumbers(layout, source, 3);
    const auto published = client->Publish(Chain(client->root), source.view);
    FB_ASSERT_OK(published);
    EXPECT_EQ(published->pages_stored, kPages) << published->first_error;
    EXPECT_LT(published->bytes * 10, source.bytes.size() * 9);
    const std::string label = absl::StrCat("{codec=\"", codec, "\"}");
    EXPECT_EQ(Metric(*client, absl::StrCat("forebay_client_encoded_bytes_total", label)),
              source.bytes.size());
    EXPECT_EQ(Metric(*client, absl::StrCat("forebay_client_encoded_payload_bytes_total", label)),
              published->bytes);
    EXPECT_EQ(Metric(*client, "forebay_client_raw_fallback_parts_total"), 0u);
    // What the node holds: the payloads, and a header each.
    int seen = 0;
    for (const NamespaceSnapshot& of : world.node(0).Namespaces()) {
      if (of.spec.model != "model") continue;
      ++seen;
      EXPECT_EQ(of.pages.frames, kPages * layout.Parts().size());
      EXPECT_EQ(of.pages.frame_bytes, published->bytes + of.pages.frames * kFrameHeaderBytes);
    }
    EXPECT_EQ(seen, 1);
    const auto explained = client->core->ExplainCodecs(client->ns, source.bytes.size());
    FB_ASSERT_OK(explained);
    ASSERT_EQ(explained->size(), 1u);
    EXPECT_TRUE(explained->front().forced);
    EXPECT_EQ(explained->front().choice.name, codec);
  }
}

// LMCache#2787: a store failed, and nobody heard.
TEST(LMCache2787Test, AStoreThatFailsIsToldAndCounted) {
  const KvLayout layout = Layout();
  ClientWorld world(1);
  auto client = NewClient(world, "client", "int4");
  FB_ASSERT_OK(client->Open(SpecWith(layout, kAny)));
  EngineMemory source(layout, kPages);
  FillNumbers(layout, source, 4);
  const auto stored = client->Publish(Chain(client->root, 3), source.view);
  FB_ASSERT_OK(stored);
  const uint64_t bytes = Metric(*client, "forebay_client_publish_bytes_total");
  EXPECT_EQ(bytes, stored->bytes);
  EXPECT_GT(bytes, 0u);
  world.KillNode(0);
  PublishOptions options;
  options.deadline = 100 * kMillisecond;
  const auto failed = client->Publish(Chain(client->root), source.view, options);
  FB_ASSERT_OK(failed);
  EXPECT_EQ(failed->pages_stored, 0u);
  EXPECT_EQ(failed->pages_refused, kPages);
  EXPECT_FALSE(failed->first_error.ok());
  EXPECT_GT(Metric(*client, "forebay_client_publish_parts_refused_total"), 0u);
  EXPECT_EQ(Metric(*client, "forebay_client_publish_bytes_total"), bytes);
}

// LMCache#2409: compressed objects were freed twice. Under AddressSanitizer this is the test.
TEST(LMCache2409Test, WhatWasFetchedIsTheReadersWhateverIsEvicted) {
  const KvLayout layout = Layout();
  ClientWorld world(1);
  auto reader = NewClient(world, "reader", "int8");
  FB_ASSERT_OK(reader->Open(SpecWith(layout, kAny)));
  EngineMemory source(layout, kPages);
  FillNumbers(layout, source, 5);
  const std::vector<PageKey> keys = Chain(reader->root);
  FB_ASSERT_OK(reader->Publish(keys, source.view));
  const auto hit = reader->Lookup(keys);
  FB_ASSERT_OK(hit);
  EngineMemory target(layout, kPages);
  FB_ASSERT_OK(reader->Fetch(*hit, target.view));
  const std::vector<std::byte> before = target.bytes;
  FB_ASSERT_OK(reader->Release(*hit));
  // More than the node holds.
  auto other = NewClient(world, "other", "raw");
  NamespaceSpec spec = SpecOf(layout);
  spec.salt = "other";
  FB_ASSERT_OK(other->Open(spec));
  constexpr uint32_t kMany = 300;
  EngineMemory many(layout, kMany);
  many.Fill(1);
  FB_ASSERT_OK(other->Publish(Chain(other->root, kMany), many.view));
  EXPECT_EQ(reader->Pages(keys), 0u);
  EngineMemory again(layout, kPages);
  const auto fetched = reader->Fetch(*hit, again.view);
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, 0u);
  EXPECT_FALSE(fetched->first_error.ok());
  EXPECT_EQ(target.bytes, before);
}

// LMCache#4064, #5022: inputs that a kernel did not take were counted as stored, with no byte.
TEST(LMCache4064Test, WhatACodecCannotTakeIsStoredRawAndCountedSo) {
  ClientWorld world(1);
  for (const DType dtype : {DType::kFp8E4M3, DType::kOpaque8, DType::kFp32}) {
    KvLayout layout = Layout();
    for (LayerSpec& layer : layout.layers) layer.dtype = dtype;
    auto client = NewClient(world, "client", "int4");
    FB_ASSERT_OK(client->Open(SpecWith(layout, kAny)));
    EngineMemory source(layout, kPages);
    source.Fill(6);
    const auto published = client->Publish(Chain(client->root), source.view);
    FB_ASSERT_OK(published);
    EXPECT_EQ(published->pages_stored, kPages);
    EXPECT_EQ(published->bytes, source.bytes.size());
    EXPECT_EQ(Metric(*client, "forebay_client_encoded_bytes_total{codec=\"int4\"}"), 0u);
    EXPECT_EQ(Read(*client, layout), source.bytes) << DTypeName(dtype);
  }
}

// LMCache#4972, #4358: groups of other shapes in one object.
TEST(LMCache4972Test, APageOfLayersOfOtherShapesComesBackWhole) {
  KvLayout layout = KvLayout::Uniform(5, 2, 64, DType::kBf16, kPageTokens, 2);
  layout.layers[1].k_dim = layout.layers[1].v_dim = 128;
  layout.layers[2].v_dim = 32;
  layout.layers[3].layer_class = LayerClass::kSlidingWindow;
  layout.layers[3].window_tokens = 1024;
  layout.layers[4].dtype = DType::kOpaque8;
  FB_ASSERT_OK(layout.Validate());
  ClientWorld world(2);
  for (const char* codec : {"int8", "lossless"}) {
    auto client = NewClient(world, "client", codec);
    NamespaceSpec spec = SpecWith(layout, kAny);
    spec.salt = codec;
    FB_ASSERT_OK(client->Open(spec));
    EngineMemory source(layout, kPages);
    FillNumbers(layout, source, 7);
    const auto published = client->Publish(Chain(client->root), source.view);
    FB_ASSERT_OK(published);
    EXPECT_EQ(published->pages_stored, kPages) << published->first_error;
    EXPECT_LT(published->bytes, source.bytes.size());
    const std::vector<std::byte> read = Read(*client, layout);
    if (std::string(codec) == "lossless") {
      EXPECT_EQ(read, source.bytes);
      continue;
    }
    EXPECT_LE(RelativeError(DType::kBf16, source.bytes, read, 0, read.size() / 2),
              ErrorMax(QualityClass::kNear));
  }
}

// vllm#38652: FP8 of MLA was right in one turn, and garbage in the next.
TEST(Vllm38652Test, TurnsThatReuseAPrefixReadWhatOneTurnReads) {
  const KvLayout layout = Mla();
  for (const char* codec : {"fp8", "fp8_token", "int8", "int4"}) {
    SCOPED_TRACE(codec);
    ClientWorld world(1);
    EngineMemory source(layout, kPages);
    FillNumbers(layout, source, 8);
    auto at_once = NewClient(world, "at once", codec);
    NamespaceSpec spec = SpecWith(layout, kAny);
    FB_ASSERT_OK(at_once->Open(spec));
    FB_ASSERT_OK(at_once->Publish(Chain(at_once->root), source.view));
    const std::vector<std::byte> wanted = Read(*at_once, layout);

    auto turns = NewClient(world, "turns", codec);
    spec.salt = "turns";
    FB_ASSERT_OK(turns->Open(spec));
    const size_t page_bytes = layout.PageBytes();
    for (uint32_t pages = 2; pages <= kPages; pages += 2) {
      // What the engine has of earlier turns is what it fetched; the last two pages are new.
      EngineMemory engine(layout, pages);
      if (pages > 2) {
        const std::vector<std::byte> prefix = Read(*turns, layout, pages - 2);
        std::memcpy(engine.bytes.data(), prefix.data(), prefix.size());
      }
      const size_t at = (pages - 2) * page_bytes;
      std::memcpy(engine.bytes.data() + at, source.bytes.data() + at, 2 * page_bytes);
      const auto published = turns->Publish(Chain(turns->root, pages), engine.view);
      FB_ASSERT_OK(published);
      EXPECT_EQ(published->pages_stored, pages);
      // The prefix is there, and is not encoded a second time.
      EXPECT_EQ(published->parts_sent, 2 * layout.Parts().size());
    }
    EXPECT_EQ(Read(*turns, layout), wanted);
    // The rotary part, exact in every page and layer.
    const size_t latent = size_t{kPageTokens} * 128 * 2;
    const size_t rotary = size_t{kPageTokens} * 32 * 2;
    for (size_t plane = 0; plane < size_t{kPages} * 2; ++plane) {
      const size_t at = plane * (latent + rotary) + latent;
      EXPECT_EQ(std::memcmp(wanted.data() + at, source.bytes.data() + at, rotary), 0) << plane;
    }
  }
}

// vllm#42179, sglang#36371: prefill and decode of other formats or sizes, and HTTP 200.
TEST(Vllm42179Test, TwoSidesThatDifferMissAndNeverRead) {
  KvLayout layout = Layout();
  layout.layers[3] = LayerSpec{};
  layout.layers[3].layer_class = LayerClass::kState;
  layout.layers[3].attention = AttentionKind::kNone;
  layout.layers[3].state_bytes = 4096;
  FB_ASSERT_OK(layout.Validate());
  ClientWorld world(1);
  auto prefill = NewClient(world, "prefill", "fp8");
  FB_ASSERT_OK(prefill->Open(SpecWith(layout, kAny)));
  EngineMemory source(layout, kPages);
  FillNumbers(layout, source, 9);
  PublishOptions options;
  options.states_of_all_pages = true;
  FB_ASSERT_OK(prefill->Publish(Chain(prefill->root), source.view, options));
  ASSERT_EQ(prefill->Pages(Chain(prefill->root)), kPages);
  KvLayout state = layout;
  state.layers[3].state_bytes = 2048;
  KvLayout dtype = layout;
  for (int i = 0; i < 3; ++i) dtype.layers[i].dtype = DType::kFp16;
  KvLayout order = layout;
  order.plane_order = PlaneOrder::kHeadMajor;
  for (const KvLayout& other : {state, dtype, order}) {
    auto decode = NewClient(world, "decode", "fp8");
    FB_ASSERT_OK(decode->Open(SpecWith(other, kAny)));
    EXPECT_NE(decode->root, prefill->root);
    EXPECT_EQ(decode->Pages(Chain(decode->root)), 0u);
    EXPECT_EQ(decode->Pages(Chain(prefill->root)), 0u);
  }
}

TEST(Sglang36371Test, AFrameOfAnotherLengthIsRefused) {
  KvLayout layout = Layout();
  KvLayout other = layout;
  for (LayerSpec& layer : other.layers) layer.k_dim = layer.v_dim = 32;
  const PartSpec part = layout.Parts()[0];
  const PartSpec shorter = other.Parts()[0];
  const PageKey key;
  const QualityContract contract;
  ArrivedFrame frame;
  frame.header = MakeFrameHeader(other, shorter, key, 0, CodecId::kRaw, shorter.raw_bytes, 1);
  frame.payload_bytes_arrived = shorter.raw_bytes;
  frame.checksum = 1;
  FB_EXPECT_OK(AcceptFrame(frame, {other, shorter, key, 0u, contract}));
  EXPECT_THAT(AcceptFrame(frame, {layout, part, key, 0u, contract}),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("raw bytes")));
}

// sglang#36121: a tier that moved codes without their scales. Any byte that is left behind is seen.
TEST(Sglang36121Test, ACopyOfAFrameIsAcceptedWholeAndNotOtherwise) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 10);
  const PageKey key;
  QualityContract contract;
  contract.bound = kAny;
  for (const auto& codec : MakePlanesCodecs()) {
    EncodedFrame encoded;
    const std::vector<std::byte> back = Trip(*codec, layout, part, raw, &encoded);
    ArrivedFrame frame;
    frame.header =
        MakeFrameHeader(layout, part, key, 0, codec->id(),
                        static_cast<uint32_t>(encoded.payload.size()), ChecksumOf(encoded.payload));
    frame.header.flags = encoded.header.flags;
    frame.header.codec_param = encoded.header.codec_param;
    frame.header.Seal();
    frame.payload_bytes_arrived = encoded.payload.size();
    const ExpectedFrame expected{layout, part, key, 0u, contract};
    // From tier to tier, byte for byte.
    std::vector<std::byte> tier = encoded.payload;
    frame.checksum = ChecksumOf(tier);
    FB_EXPECT_OK(AcceptFrame(frame, expected)) << codec->name();
    encoded.payload = tier;
    EXPECT_EQ(*testing::Decode(layout, part, encoded), back) << codec->name();
    for (size_t at = 0; at < tier.size(); at += 1 + tier.size() / 97) {
      tier[at] ^= std::byte{1};
      frame.checksum = ChecksumOf(tier);
      EXPECT_THAT(AcceptFrame(frame, expected), HasCode(absl::StatusCode::kDataLoss))
          << codec->name() << " at " << at;
      tier[at] ^= std::byte{1};
    }
    frame.checksum = ChecksumOf(tier);
    frame.payload_bytes_arrived -= 16;  // of the last plane's scales
    EXPECT_THAT(AcceptFrame(frame, expected), HasCode(absl::StatusCode::kDataLoss));
  }
}

// openvino.genai#3722, Mooncake#4153: keys that agree in a part, and the block of another.
TEST(OpenvinoGenai3722Test, KeysThatAgreeInAHalfAreOtherPages) {
  const KvLayout layout = Layout();
  ClientWorld world(1);
  auto client = NewClient(world, "client", "int8");
  FB_ASSERT_OK(client->Open(SpecWith(layout, kAny)));
  EngineMemory source(layout, 1);
  FillNumbers(layout, source, 11);
  const std::vector<PageKey> keys = Chain(client->root, 1);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  ASSERT_EQ(client->Pages(keys), 1u);
  for (size_t byte = 0; byte < 32; ++byte) {
    std::vector<PageKey> other = keys;
    other[0].bytes[byte] ^= 1;
    EXPECT_EQ(client->Pages(other), 0u) << byte;
  }
  // And a frame says whose it is, before anybody decodes it.
  const PartSpec part = layout.Parts()[0];
  QualityContract contract;
  ArrivedFrame frame;
  frame.header = MakeFrameHeader(layout, part, keys[0], 0, CodecId::kRaw, part.raw_bytes, 1);
  frame.payload_bytes_arrived = part.raw_bytes;
  frame.checksum = 1;
  FB_EXPECT_OK(AcceptFrame(frame, {layout, part, keys[0], 0u, contract}));
  PageKey other = keys[0];
  other.bytes[15] ^= 1;
  EXPECT_THAT(AcceptFrame(frame, {layout, part, other, 0u, contract}),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("identity")));
}

// MemOS#2315: caches were put one after another without new positions.
TEST(MemOs2315Test, APageIsOfOnePlaceInOneChain) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  ClientWorld world(1);
  auto client = NewClient(world, "client", "int8");
  FB_ASSERT_OK(client->Open(SpecWith(layout, kAny)));
  EngineMemory source(layout, kPages);
  FillNumbers(layout, source, 12);
  const std::vector<PageKey> keys = Chain(client->root);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  // The same tokens after others have other keys, and are not there.
  std::vector<uint32_t> after = Tokens(kPageTokens, /*first=*/5000);
  for (const uint32_t token : Tokens(kPageTokens)) after.push_back(token);
  EXPECT_EQ(client->Pages(PageKeysOf(client->root, after, kPageTokens)), 0u);
  // So where positions are made otherwise.
  NamespaceSpec spec = SpecWith(layout, kAny);
  spec.position_encoding = "rope:theta=500000";
  const PageKey root = client->root;
  FB_ASSERT_OK(client->Open(spec));
  EXPECT_NE(client->root, root);
  EXPECT_EQ(client->Pages(Chain(client->root)), 0u);
  // A frame of the first page does not stand for the third.
  const QualityContract contract;
  ArrivedFrame frame;
  frame.header = MakeFrameHeader(layout, part, keys[0], 0, CodecId::kRaw, part.raw_bytes, 1);
  frame.payload_bytes_arrived = part.raw_bytes;
  frame.checksum = 1;
  EXPECT_THAT(AcceptFrame(frame, {layout, part, keys[0], 2u, contract}),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("page index")));
}

}  // namespace
}  // namespace forebay
