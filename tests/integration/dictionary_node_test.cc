// Dictionaries of the uniform-step codec through the pool: the writer puts its own there, a reader
// who has none gets it. In virtual time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "base/random.h"
#include "base/status_macros.h"
#include "base/testing/status_matchers.h"
#include "codec/uniform/calibrator.h"
#include "codec/uniform/uniform_codec.h"
#include "tests/integration/client_world.h"

namespace forebay {
namespace {

using ::forebay::testing::ClientWorld;
using ::forebay::testing::EngineMemory;
using ::forebay::testing::HasStatus;
using ::forebay::testing::SpecOf;
using ::forebay::testing::Tokens;
using ::forebay::testing::WorldClient;
using ::testing::HasSubstr;

constexpr uint32_t kPageTokens = 64;
constexpr uint32_t kPages = 4;

KvLayout Layout() { return KvLayout::Uniform(2, 2, 32, DType::kBf16, kPageTokens, 1); }

NamespaceSpec Spec() {
  NamespaceSpec spec = SpecOf(Layout());
  spec.quality.bound = {QualityClass::kCoarse, QualityClass::kCoarse};
  return spec;
}

void FillNumbers(absl::Span<std::byte> memory, uint64_t seed) {
  SeededRandom random(seed);
  for (size_t i = 0; i + 1 < memory.size(); i += 2) {
    const float value = static_cast<float>(random.Below(2001)) / 1000 - 1;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const auto half = static_cast<uint16_t>(bits >> 16);
    std::memcpy(memory.data() + i, &half, sizeof(half));
  }
}

// Another one for each seed, so that no test finds what another has loaded.
std::shared_ptr<const Dictionary> MakeDictionary(uint64_t seed) {
  UniformCalibrator calibrator(Layout());
  const PlaneShape shape{kPageTokens, 2, 32, PlaneOrder::kTokenMajor, DType::kBf16};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (const Stream stream : {Stream::kKey, Stream::kValue}) {
      std::vector<std::byte> plane(shape.raw_bytes());
      FillNumbers(absl::MakeSpan(plane), seed * 10 + layer);
      EXPECT_TRUE(calibrator.AddPlane(layer, stream, shape, plane).ok());
    }
  }
  return std::make_shared<const Dictionary>(*calibrator.Finish({}));
}

class DictionaryNodeTest : public ::testing::Test {
 protected:
  // Encodes with `dictionary`, which this process's store does not have.
  std::unique_ptr<WorldClient> Writer(std::shared_ptr<const Dictionary> dictionary) {
    ClientCoreOptions options;
    options.codec = "uniform";
    options.uniform =
        std::make_shared<const UniformCodec>("uniform", &store_, std::move(dictionary), 1.0f, 1.0f);
    return world_.NewClient("writer", std::string(kDefaultTenant), std::move(options));
  }
  absl::StatusOr<FetchResult> FetchAll(WorldClient& reader) {
    const auto hit = reader.Lookup(keys_);
    FB_RETURN_IF_ERROR(hit.status());
    EXPECT_EQ((*hit)->page_count(), kPages);
    return reader.Fetch(*hit, target_.view);
  }
  void PublishAll(WorldClient& writer) {
    FB_ASSERT_OK(writer.Open(Spec()));
    keys_ = PageKeysOf(writer.root, Tokens(kPages * kPageTokens), kPageTokens);
    FillNumbers(absl::MakeSpan(source_.bytes), 5);
    const auto published = writer.Publish(keys_, source_.view);
    FB_ASSERT_OK(published);
    ASSERT_EQ(published->pages_stored, kPages) << published->first_error;
    ASSERT_LT(published->bytes, source_.bytes.size() / 2) << "nothing was encoded";
  }
  float LargestError() const {
    float largest = 0;
    for (size_t i = 0; i + 1 < source_.bytes.size(); i += 2) {
      float values[2];
      const std::byte* const at[2] = {source_.bytes.data() + i, target_.bytes.data() + i};
      for (int k = 0; k < 2; ++k) {
        uint16_t half;
        std::memcpy(&half, at[k], sizeof(half));
        const uint32_t bits = uint32_t{half} << 16;
        std::memcpy(&values[k], &bits, sizeof(bits));
      }
      largest = std::max(largest, std::abs(values[0] - values[1]));
    }
    return largest;
  }

  ClientWorld world_{2};
  DictionaryStore store_;
  std::vector<PageKey> keys_;
  EngineMemory source_{Layout(), kPages};
  EngineMemory target_{Layout(), kPages};
};

TEST_F(DictionaryNodeTest, AReaderWithoutItGetsItFromThePool) {
  const auto dictionary = MakeDictionary(1);
  ASSERT_EQ(DictionaryStore::Default().Find(dictionary->name()), nullptr);
  auto writer = Writer(dictionary);
  PublishAll(*writer);
  auto reader = world_.NewClient("reader");
  FB_ASSERT_OK(reader->Open(Spec()));
  for (int i = 0; i < 2; ++i) {
    const auto fetched = FetchAll(*reader);
    FB_ASSERT_OK(fetched);
    EXPECT_EQ(fetched->page_count, kPages) << fetched->first_error;
    EXPECT_LT(LargestError(), 0.5f);
  }
  ASSERT_NE(DictionaryStore::Default().Find(dictionary->name()), nullptr);
}

// Evicted, it is missed until a writer publishes again; its pages are misses meanwhile, and say
// why.
TEST_F(DictionaryNodeTest, OneThatWasEvictedIsAMissUntilAWriterComesBack) {
  const auto dictionary = MakeDictionary(2);
  auto writer = Writer(dictionary);
  PublishAll(*writer);
  auto reader = world_.NewClient("reader");
  FB_ASSERT_OK(reader->Open(Spec()));
  // As much as the pool holds, in pages of the same size; the chain stays, since it is looked up.
  const KvLayout large = KvLayout::Uniform(1, 1, 512, DType::kFp32, 16, 1);
  auto other = world_.NewClient("other");
  FB_ASSERT_OK(other->Open(SpecOf(large, "other")));
  EngineMemory filler(large, 32);
  for (uint32_t i = 0; i < 24; ++i) {
    filler.Fill(i);
    FB_ASSERT_OK(other->Publish(PageKeysOf(other->root, Tokens(32 * 16, 10'000 * (i + 1)), 16),
                                filler.view));
    ASSERT_EQ(reader->Pages(keys_), kPages);
  }
  const auto missed = FetchAll(*reader);
  FB_ASSERT_OK(missed);
  EXPECT_EQ(missed->page_count, 0u);
  EXPECT_THAT(missed->first_error, HasStatus(absl::StatusCode::kNotFound, HasSubstr("dictionary")));

  world_.RunFor(11 * kSecond);  // by then the writer looks after it again
  FB_ASSERT_OK(writer->Publish(keys_, source_.view));
  world_.RunFor(kSecond);
  const auto fetched = FetchAll(*reader);
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, kPages) << fetched->first_error;
  EXPECT_LT(LargestError(), 0.5f);
}

// A fetch that waits for a dictionary ends by its deadline all the same.
TEST_F(DictionaryNodeTest, WaitingForOneEndsByTheDeadline) {
  const auto dictionary = MakeDictionary(3);
  auto writer = Writer(dictionary);
  PublishAll(*writer);
  auto reader = world_.NewClient("reader");
  FB_ASSERT_OK(reader->Open(Spec()));
  const auto hit = reader->Lookup(keys_);
  FB_ASSERT_OK(hit);
  FetchOptions options;
  options.deadline = kMillisecond;
  // The pages come at once; what answers for the dictionary is cut off.
  bool done = false;
  reader->core->Fetch(reader->ns, *hit, target_.view, options, nullptr,
                      [&](const absl::StatusOr<FetchResult>& fetched) {
                        done = true;
                        FB_EXPECT_OK(fetched);
                      });
  const Nanos start = world_.clock.Now();
  EXPECT_TRUE(world_.RunUntil([&] { return done; }));
  EXPECT_LE(world_.clock.Now() - start, 200 * kMillisecond);
}

// Somebody of the same tenant puts other bytes under its name first: then it is a miss, since what
// comes has another SHA-256. Nothing wrong is decoded.
TEST_F(DictionaryNodeTest, BytesOfAnotherNameAreNotBelieved) {
  const auto dictionary = MakeDictionary(4);
  const auto other = MakeDictionary(5);
  NamespaceSpec objects;
  objects.model = "forebay.objects";
  objects.model_revision = "1";
  objects.layout.page_tokens = 8;
  LayerSpec layer;
  layer.attention = AttentionKind::kMqa;
  layer.dtype = DType::kOpaque8;
  layer.kv_heads = 1;
  layer.k_dim = 8192;
  objects.layout.layers = {layer};
  auto impostor = world_.NewClient("impostor");
  FB_ASSERT_OK(impostor->Open(objects));
  EngineMemory memory(objects.layout, 1);
  const uint64_t length = other->serialized().size();
  ASSERT_LT(length, memory.bytes.size() - 8);
  std::memcpy(memory.bytes.data(), &length, 8);
  std::memcpy(memory.bytes.data() + 8, other->serialized().data(), length);
  std::vector<uint32_t> words(8);
  std::memcpy(words.data(), dictionary->name().data(), 32);
  const auto put = impostor->Publish(PageKeysOf(impostor->root, words, 8), memory.view);
  FB_ASSERT_OK(put);
  ASSERT_EQ(put->pages_stored, 1u);

  auto writer = Writer(dictionary);
  PublishAll(*writer);
  auto reader = world_.NewClient("reader");
  FB_ASSERT_OK(reader->Open(Spec()));
  const auto fetched = FetchAll(*reader);
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, 0u);
  EXPECT_EQ(DictionaryStore::Default().Find(dictionary->name()), nullptr);
  EXPECT_EQ(DictionaryStore::Default().Find(other->name()), nullptr);
}

}  // namespace
}  // namespace forebay
