// The entropy decoder and the exponent split meet any bytes at all: they fail, or fill their
// symbols entirely; they touch nothing else; and what an encoder wrote comes back.

#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "codec/entropy/rans32.h"
#include "codec/lossless/exponent_split.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"

namespace forebay::fuzz {
namespace {

// More than two blocks: they are read two at once.
constexpr size_t kSymbolsMax = 3 * Rans32Reader::kBlockSymbols;
constexpr size_t kPayloadBytesMax = 2 * kSymbolsMax + 4096;
constexpr size_t kChannels = 64;

enum Mode : uint8_t { kStream, kDamagedStream, kTable, kSplit, kDamagedSplit, kModes };

GuardedMemory& RawMemory() {
  static auto* const memory = new GuardedMemory(2 * kSymbolsMax);
  return *memory;
}
Bytes Held(Bytes payload) {
  static auto* const memory = new GuardedMemory(kPayloadBytesMax);
  return memory->Hold(payload.first(std::min(payload.size(), kPayloadBytesMax)));
}

// What decode(to) fills it fills entirely: over other memory the same comes out.
template <typename Decode>
absl::Status FillsEntirely(MutableBytes to, Decode decode) {
  std::memset(to.data(), 0x5a, to.size());
  const absl::Status status = decode(to);
  if (!status.ok()) {
    FB_CHECK(!status.message().empty());
    return status;
  }
  const std::vector<std::byte> once(to.begin(), to.end());
  std::memset(to.data(), 0xa5, to.size());
  FB_CHECK(decode(to).ok());
  FB_CHECK(once.empty() || std::memcmp(once.data(), to.data(), to.size()) == 0);
  return status;
}

absl::Status DecodeStream(Bytes stream, size_t symbol_count) {
  const Bytes held = Held(stream);
  return FillsEntirely(RawMemory().Last(symbol_count),
                       [held](MutableBytes to) { return Rans32Decode(held, to); });
}

// Few symbols are frequent. Of words of 16 bits the low byte is anything.
std::vector<std::byte> Symbols(FuzzInput& input, size_t count, bool words) {
  SeededRandom random(input.Take<uint16_t>());
  const auto alphabet = static_cast<uint8_t>(input.Below(256));  // less one
  const bool skewed = input.Flag();
  std::vector<std::byte> symbols(count);
  for (size_t i = 0; i < count; i += 2) {
    const uint64_t bits = random.Next();
    const auto any = static_cast<uint8_t>(bits);
    const auto of_it =
        static_cast<uint8_t>((skewed ? bits >> 8 & bits >> 16 & bits >> 24 : bits >> 8) & 255);
    symbols[i] = static_cast<std::byte>(words ? any : any & alphabet);
    if (i + 1 < count) symbols[i + 1] = static_cast<std::byte>(of_it % (alphabet + 1));
  }
  return symbols;
}

// Seldom whole blocks besides, which take their time.
size_t TakeCount(FuzzInput& input) {
  const size_t blocks = input.Below(16);
  return (blocks < 14 ? 0 : blocks - 13) * Rans32Reader::kBlockSymbols + input.Below(2048);
}

void DamageStream(FuzzInput& input) {
  const std::vector<std::byte> symbols = Symbols(input, TakeCount(input), /*words=*/false);
  std::vector<std::byte> stream(Rans32BytesMax(symbols.size()));
  stream.resize(Rans32Encode(symbols, absl::MakeSpan(stream)));
  const std::vector<std::byte> sound = stream;
  Damage(input, stream);
  const absl::Status status = DecodeStream(stream, symbols.size());
  if (stream != sound) return;
  FB_CHECK(status.ok());
  const MutableBytes back = RawMemory().Last(symbols.size());
  FB_CHECK(std::equal(symbols.begin(), symbols.end(), back.begin()));
}

// Another table before sound blocks, and a reader that is handed pieces.
void ReadTable(FuzzInput& input) {
  const size_t at_once = 32 * (1 + input.Below(4096));
  const size_t count = input.Below(65536);
  const Bytes rest = Held(input.TakeRest());
  Bytes table = rest;
  const absl::StatusOr<Rans32Frequencies> frequencies = Rans32Frequencies::Parse(&table);
  if (frequencies.ok()) {
    // A table is its own: what is read is written likewise.
    std::vector<std::byte> again(Rans32Frequencies::kSerializedBytesMax);
    again.resize(frequencies->Serialize(absl::MakeSpan(again)));
    FB_CHECK(again.size() == rest.size() - table.size());
    FB_CHECK(std::memcmp(again.data(), rest.data(), again.size()) == 0);
  }
  Rans32Reader reader;
  if (!reader.Open(rest, count).ok()) return;
  const MutableBytes symbols = RawMemory().Last(count);
  for (size_t at = 0; at < count; at += at_once) {
    if (!reader.Next(symbols.subspan(at, std::min(at_once, count - at))).ok()) return;
  }
}

SplitChannels TakeChannels(FuzzInput& input, size_t elements) {
  if (!input.Flag()) return {};
  // Whole runs, as a plane in either order has.
  return {kChannels, input.Flag() ? elements : kChannels * (1 + input.Below(64))};
}

DType TakeDType(FuzzInput& input) { return input.Flag() ? DType::kFp16 : DType::kBf16; }

absl::Status DecodeSplit(DType dtype, Bytes payload, size_t raw_bytes,
                         const SplitChannels& channels) {
  const Bytes held = Held(payload);
  const absl::StatusOr<size_t> bytes = ExponentSplitBytes(held);
  FB_CHECK(!bytes.ok() || *bytes <= held.size());
  return FillsEntirely(RawMemory().Last(raw_bytes), [&](MutableBytes to) {
    return ExponentSplitDecode(dtype, held, to, channels);
  });
}

// The header's version, dtype, count and length put right, so that it gets to the streams.
void RepairSplit(DType dtype, size_t elements, std::vector<std::byte>& payload) {
  if (payload.size() < kSplitHeaderBytes) return;
  payload[0] = std::byte{2};
  payload[2] = static_cast<std::byte>(dtype);
  const auto count = static_cast<uint32_t>(elements);
  const auto bytes = static_cast<uint32_t>(payload.size());
  std::memcpy(payload.data() + 4, &count, sizeof(count));
  std::memcpy(payload.data() + 12, &bytes, sizeof(bytes));
}

void SplitAny(FuzzInput& input) {
  const DType dtype = TakeDType(input);
  const size_t elements = kChannels * input.Below(512);
  const SplitChannels channels = TakeChannels(input, elements);
  const bool repair = input.Flag();
  const Bytes rest = input.TakeRest();
  std::vector<std::byte> payload(rest.begin(), rest.end());
  if (repair) RepairSplit(dtype, elements, payload);
  DecodeSplit(dtype, payload, 2 * elements, channels).IgnoreError();
}

void DamageSplit(FuzzInput& input) {
  const DType dtype = TakeDType(input);
  const size_t elements = kChannels * (TakeCount(input) / kChannels);
  const SplitChannels channels = TakeChannels(input, elements);
  const SplitForm form = input.Flag() ? SplitForm::kEntropy : SplitForm::kFixed;
  const bool repair = input.Flag();
  const std::vector<std::byte> raw = Symbols(input, 2 * elements, /*words=*/true);
  std::vector<std::byte> payload(ExponentSplitBytesMax(raw.size()));
  payload.resize(ExponentSplitEncode(dtype, form, raw, absl::MakeSpan(payload), channels));
  const std::vector<std::byte> sound = payload;
  Damage(input, payload);
  if (repair) RepairSplit(dtype, elements, payload);
  const absl::Status status = DecodeSplit(dtype, payload, raw.size(), channels);
  if (payload != sound) return;
  FB_CHECK(status.ok());
  const MutableBytes back = RawMemory().Last(raw.size());
  FB_CHECK(std::equal(raw.begin(), raw.end(), back.begin()));
}

void AddSymbols(SeedBuilder& seed, uint16_t random_seed, size_t alphabet) {
  seed.Add(random_seed).AddBelow(alphabet - 1).AddFlag(true);
}
void AddCount(SeedBuilder& seed, size_t count) {
  const size_t blocks = count / Rans32Reader::kBlockSymbols;
  seed.AddBelow(blocks == 0 ? 0 : 13 + blocks).AddBelow(count % Rans32Reader::kBlockSymbols);
}
void AddChanges(SeedBuilder& seed, uint8_t changes) {
  seed.Add(changes);
  for (uint8_t i = 0; i < changes; ++i) seed.Add(i).Add(uint32_t{999} * i).Add(uint8_t{1});
}

void RunMode(FuzzInput& input) {
  switch (input.Take<uint8_t>() % kModes) {
    case kStream: {
      const size_t count = input.Below(65536);
      DecodeStream(input.TakeRest(), count).IgnoreError();
      break;
    }
    case kDamagedStream:
      DamageStream(input);
      break;
    case kTable:
      ReadTable(input);
      break;
    case kSplit:
      SplitAny(input);
      break;
    default:
      DamageSplit(input);
      break;
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const size_t count : {0, 33, 2000, 32'800, 67'000}) {
    for (uint8_t changes = 0; changes < 3; ++changes) {
      if (count > 30'000 && changes != 1) continue;  // the replay has seconds, not minutes
      for (const size_t alphabet : {1, 20, 256}) {
        SeedBuilder seed;
        seed.Add(kDamagedStream);
        AddCount(seed, count);
        AddSymbols(seed, 7, alphabet);
        AddChanges(seed, changes);
        seeds.push_back(seed.Take());
      }
      for (uint8_t bits = 0; bits < 8; ++bits) {
        SeedBuilder seed;
        seed.Add(kDamagedSplit).AddFlag((bits & 1) != 0);
        AddCount(seed, count);
        seed.AddFlag((bits & 2) != 0);
        if ((bits & 2) != 0) seed.AddFlag(true);
        seed.AddFlag((bits & 4) != 0).AddFlag(true);
        AddSymbols(seed, 9, 40);
        AddChanges(seed, changes);
        seeds.push_back(seed.Take());
      }
    }
  }
  // Whole payloads, which mutations change anywhere.
  std::vector<std::byte> symbols(1024);
  SeededRandom random(3);
  for (std::byte& symbol : symbols) symbol = static_cast<std::byte>(0x3c + random.Below(6));
  std::vector<std::byte> stream(Rans32BytesMax(symbols.size()));
  stream.resize(Rans32Encode(symbols, absl::MakeSpan(stream)));
  seeds.push_back(SeedBuilder().Add(kStream).AddBelow(symbols.size()).AddBytes(stream).Take());
  seeds.push_back(
      SeedBuilder().Add(kTable).AddBelow(0).AddBelow(1024).AddBytes(Bytes(stream)).Take());
  seeds.push_back(SeedBuilder()
                      .Add(kTable)
                      .AddBelow(0)
                      .AddBelow(1024)
                      .AddBytes(Bytes(stream).subspan(1))
                      .Take());
  for (const SplitForm form : {SplitForm::kFixed, SplitForm::kEntropy}) {
    std::vector<std::byte> payload(ExponentSplitBytesMax(symbols.size()));
    payload.resize(ExponentSplitEncode(DType::kBf16, form, symbols, absl::MakeSpan(payload), {}));
    SeedBuilder seed;
    seed.Add(kSplit).AddFlag(false).AddBelow(8).AddFlag(false).AddFlag(false).AddBytes(payload);
    seeds.push_back(seed.Take());
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  forebay::fuzz::RunMode(input);
  return 0;
}
