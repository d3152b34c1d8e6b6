#include "proto/wire.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/testing/status_matchers.h"

namespace forebay::wire {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

PageKey KeyOf(uint8_t fill) {
  PageKey key;
  key.bytes.fill(fill);
  return key;
}

std::vector<std::byte> LookupMessage(uint32_t key_count) {
  std::vector<PageKey> keys;
  for (uint32_t i = 0; i < key_count; ++i) keys.push_back(KeyOf(static_cast<uint8_t>(i)));
  Lookup lookup;
  lookup.namespace_id = 5;
  lookup.flags = kWantLocations;
  lookup.lease_ms = 2000;
  lookup.key_count = key_count;
  Writer writer(Kind::kLookup, /*op=*/0x1122334455667788, lookup);
  writer.Array<PageKey>(keys);
  const Bytes bytes = writer.Take();
  return {bytes.begin(), bytes.end()};
}

std::string Hex(Bytes bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<uint8_t>(b) >> 4];
    text += kDigits[static_cast<uint8_t>(b) & 15];
  }
  return text;
}

// The bytes of wire version 1. A change here is a new wire version.
TEST(WireTest, ALookupHasItsGoldenBytes) {
  const std::vector<std::byte> message = LookupMessage(1);
  EXPECT_EQ(Hex(message),
            "01fb010330000000"
            "8877665544332211"
            "05000000"
            "01000000"
            "d0070000"
            "01000000"
            "0000000000000000000000000000000000000000000000000000000000000000");
}

TEST(WireTest, AMessageIsReadInTheOrderItWasWritten) {
  const std::vector<std::byte> message = LookupMessage(3);
  absl::StatusOr<Reader> reader = Reader::Of(Bytes(message));
  FB_ASSERT_OK(reader);
  EXPECT_EQ(reader->kind(), Kind::kLookup);
  EXPECT_EQ(reader->head().op, 0x1122334455667788u);
  Lookup lookup;
  FB_ASSERT_OK(reader->Read(&lookup));
  EXPECT_EQ(lookup.lease_ms, 2000u);
  std::vector<PageKey> keys;
  FB_ASSERT_OK(reader->ReadArray(lookup.key_count, kKeysMax, &keys));
  EXPECT_EQ(keys[2], KeyOf(2));
  FB_EXPECT_OK(reader->Finish());
}

TEST(WireTest, PaddingLinesUpWhatFollows) {
  LookupReply reply;
  reply.page_count = 3;
  reply.location_count = 1;
  const uint8_t classes[] = {1, 1, 3};
  const SlotLocation locations[] = {{1, 2, 3, 4}};
  Writer writer(Kind::kLookupReply, 9, reply);
  writer.Array<uint8_t>(classes).PadTo8().Array<SlotLocation>(locations);
  absl::StatusOr<Reader> reader = Reader::Of(writer.Take());
  FB_ASSERT_OK(reader);
  LookupReply back;
  std::vector<uint8_t> classes_back;
  std::vector<SlotLocation> locations_back;
  FB_ASSERT_OK(reader->Read(&back));
  FB_ASSERT_OK(reader->ReadArray(back.page_count, kKeysMax, &classes_back));
  FB_ASSERT_OK(reader->SkipPadTo8());
  FB_ASSERT_OK(reader->ReadArray(back.location_count, kLocationsMax, &locations_back));
  FB_EXPECT_OK(reader->Finish());
  EXPECT_EQ(classes_back[2], 3);
  EXPECT_EQ(locations_back[0].generation, 4u);
}

// Every prefix of a sound message is refused, wherever it is cut.
TEST(WireTest, ATruncatedMessageIsRefusedAtEveryLength) {
  const std::vector<std::byte> message = LookupMessage(2);
  for (size_t bytes = 0; bytes < message.size(); ++bytes) {
    EXPECT_THAT(Reader::Of(Bytes(message.data(), bytes)),
                HasCode(absl::StatusCode::kInvalidArgument))
        << bytes;
  }
}

TEST(WireTest, CountsAreCheckedBeforeAnythingIsRead) {
  std::vector<std::byte> message = LookupMessage(2);
  for (const uint32_t count : {3u, kKeysMax, kKeysMax + 1, 1'000'000u, UINT32_MAX}) {
    absl::StatusOr<Reader> reader = Reader::Of(Bytes(message));
    FB_ASSERT_OK(reader);
    Lookup lookup;
    FB_ASSERT_OK(reader->Read(&lookup));
    std::vector<PageKey> keys;
    EXPECT_THAT(reader->ReadArray(count, kKeysMax, &keys),
                HasCode(absl::StatusCode::kInvalidArgument))
        << count;
    EXPECT_TRUE(keys.empty());
  }
}

TEST(WireTest, BytesTooManyAreRefused) {
  const std::vector<std::byte> message = LookupMessage(2);
  absl::StatusOr<Reader> reader = Reader::Of(Bytes(message));
  FB_ASSERT_OK(reader);
  Lookup lookup;
  FB_ASSERT_OK(reader->Read(&lookup));
  EXPECT_THAT(reader->Finish(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("64 bytes too many")));
}

TEST(WireTest, AnotherVersionIsRefusedNamingBothRanges) {
  std::vector<std::byte> message = LookupMessage(1);
  message[offsetof(Head, version)] = std::byte{99};
  EXPECT_THAT(Reader::Of(Bytes(message)), HasStatus(absl::StatusCode::kFailedPrecondition,
                                                    HasSubstr("wire version 99 is not in [1, 1]")));
}

TEST(WireTest, OtherMagicIsRefused) {
  std::vector<std::byte> message = LookupMessage(1);
  message[0] = std::byte{0};
  EXPECT_THAT(Reader::Of(Bytes(message)), HasCode(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace forebay::wire
