#include "codec/composition.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kAlignment = 16;
constexpr size_t kFormatsMax = 250;  // of a plan, so that raw planes and the codec's find a place
constexpr size_t kOwnFormats = 2;    // K and V of the header

constexpr uint8_t kHasKept = 1;
constexpr uint8_t kHasExact = 2;
constexpr int kClassScopeShift = 2;
constexpr int kFormatScopeShift = 4;
constexpr uint8_t kScopeMask = 3;
constexpr uint8_t kSectionsKnown = 0x3f;

struct Header {
  uint8_t version = kVersion;
  uint8_t sections = 0;
  uint16_t absent_tokens = 0;
  uint32_t zero = 0;
  PlaneFormat k;
  PlaneFormat v;
};
static_assert(sizeof(Header) == 8 + 2 * sizeof(PlaneFormat));

constexpr size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
constexpr size_t kHeaderBytes = Aligned(sizeof(Header));

size_t BitBytes(const Composition& composition, const PartSpec& part) {
  return ListCount(composition.class_scope, part) * ((composition.token_count + 7) / 8);
}

bool Has(const std::vector<TokenClass>& classes, uint32_t page_tokens, uint32_t token_count,
         TokenClass wanted) {
  for (auto list = classes.begin(); list != classes.end(); list += page_tokens) {
    if (std::find(list, list + token_count, wanted) != list + token_count) return true;
  }
  return false;
}

// Whether all lists of `length` in [begin, begin + count * length) are equal.
template <typename T>
bool AllEqual(const std::vector<T>& lists, size_t begin, size_t count, size_t length) {
  const auto first = lists.begin() + static_cast<ptrdiff_t>(begin);
  // Each element equals that of the list after it.
  return std::equal(first, first + static_cast<ptrdiff_t>((count - 1) * length),
                    first + static_cast<ptrdiff_t>(length));
}

// Brings lists of `length` to the smallest scope that says the same.
template <typename T>
void Shrink(const PartSpec& part, size_t length, PlanScope* scope, std::vector<T>* lists) {
  const size_t heads = part.head_count;
  if (*scope == PlanScope::kHead) {
    for (size_t layer = 0; layer < part.layer_count; ++layer) {
      if (!AllEqual(*lists, layer * heads * length, heads, length)) return;
    }
    for (size_t layer = 1; layer < part.layer_count; ++layer) {
      const auto from = lists->begin() + static_cast<ptrdiff_t>(layer * heads * length);
      std::copy_n(from, length, lists->begin() + static_cast<ptrdiff_t>(layer * length));
    }
    lists->resize(part.layer_count * length);
    *scope = PlanScope::kLayer;
  }
  if (*scope == PlanScope::kLayer && AllEqual(*lists, 0, part.layer_count, length)) {
    lists->resize(length);
    *scope = PlanScope::kPart;
  }
}

void ShrinkClasses(const KvLayout& layout, const PartSpec& part, Composition* composition) {
  std::vector<TokenClass>& classes = composition->classes;
  const uint32_t token_count = composition->token_count;
  // What is not there yet has no class.
  for (auto list = classes.begin(); list != classes.end(); list += layout.page_tokens) {
    std::fill(list + token_count, list + layout.page_tokens, TokenClass::kDropped);
  }
  if (!Has(classes, layout.page_tokens, token_count, TokenClass::kDropped) &&
      !Has(classes, layout.page_tokens, token_count, TokenClass::kExact)) {
    classes.clear();
    composition->class_scope = PlanScope::kPart;
    return;
  }
  Shrink(part, layout.page_tokens, &composition->class_scope, &classes);
}

void ShrinkFormats(const PartSpec& part, Composition* composition) {
  std::vector<PlaneFormat>& formats = composition->formats;
  if (formats.empty()) return;
  Shrink(part, kOwnFormats, &composition->format_scope, &formats);
  if (composition->format_scope != PlanScope::kPart) return;
  composition->k = formats[0];
  composition->v = formats[1];
  formats.clear();
}

// The formats of the map beside K and V of the header, in the order of their first use.
std::vector<PlaneFormat> TableOf(const Composition& composition) {
  std::vector<PlaneFormat> table = {composition.k, composition.v};
  for (const PlaneFormat& format : composition.formats) {
    if (std::find(table.begin(), table.end(), format) == table.end()) table.push_back(format);
  }
  return table;
}

PlaneFormat ValueFormat(const PartSpec& part, const PlaneFormat& v) {
  if (part.stream == Stream::kLatent && !IsLossless(v.kind)) return PlaneFormat{};
  return v;
}

absl::Status Broken(absl::string_view what) { return absl::DataLossError(what); }

// A range that is checked as it is read.
class Reader {
 public:
  explicit Reader(Bytes bytes) : left_(bytes) {}
  // nullptr: there are fewer.
  const uint8_t* Take(size_t bytes) {
    if (left_.size() < bytes) return nullptr;
    const auto* const taken = reinterpret_cast<const uint8_t*>(left_.data());
    left_.remove_prefix(bytes);
    return taken;
  }
  // Up to a multiple of 16 bytes from the start of what had `total` bytes; false: not zeros.
  bool SkipZeros(size_t total) {
    const size_t read = total - left_.size();
    const uint8_t* const zeros = Take(Aligned(read) - read);
    return zeros != nullptr && std::all_of(zeros, zeros + (Aligned(read) - read),
                                           [](uint8_t byte) { return byte == 0; });
  }
  Bytes left() const { return left_; }

 private:
  Bytes left_;
};

absl::Status ReadMap(const PartSpec& part, Reader* reader, Composition* composition) {
  const uint8_t* const count = reader->Take(1);
  if (count == nullptr) return Broken("the precision map ends early");
  std::vector<PlaneFormat> table = {composition->k, composition->v};
  for (int i = 0; i < *count; ++i) {
    const uint8_t* const bytes = reader->Take(sizeof(PlaneFormat));
    if (bytes == nullptr) return Broken("the precision map ends early");
    std::memcpy(&table.emplace_back(), bytes, sizeof(PlaneFormat));
  }
  const size_t entries = ListCount(composition->format_scope, part) * kOwnFormats;
  const uint8_t* const indices = reader->Take(entries);
  if (indices == nullptr) return Broken("the precision map ends early");
  composition->formats.resize(entries);
  for (size_t i = 0; i < entries; ++i) {
    if (indices[i] >= table.size())
      return Broken("the precision map names a format past its table");
    composition->formats[i] = table[indices[i]];
  }
  for (const PlaneFormat& format : table) {
    if (absl::Status status = CheckPlaneFormat(format, part.dtype); !status.ok()) {
      return Broken(status.message());
    }
  }
  return absl::OkStatus();
}

absl::Status ReadClasses(const KvLayout& layout, const PartSpec& part, uint8_t sections,
                         Reader* reader, Composition* composition) {
  const size_t lists = ListCount(composition->class_scope, part);
  const size_t list_bytes = (composition->token_count + 7) / 8;
  const uint8_t* kept = nullptr;
  const uint8_t* exact = nullptr;
  if ((sections & kHasKept) != 0 && (kept = reader->Take(lists * list_bytes)) == nullptr) {
    return Broken("the retention mask ends early");
  }
  if ((sections & kHasExact) != 0 && (exact = reader->Take(lists * list_bytes)) == nullptr) {
    return Broken("the bits of exact tokens end early");
  }
  composition->classes.assign(lists * layout.page_tokens, TokenClass::kDropped);
  for (size_t list = 0; list < lists; ++list) {
    for (size_t token = 0; token < list_bytes * 8; ++token) {
      const size_t at = list * list_bytes + token / 8;
      const bool is_there = token < composition->token_count;
      const bool is_kept = kept == nullptr ? is_there : (kept[at] >> token % 8 & 1) != 0;
      const bool is_exact = exact != nullptr && (exact[at] >> token % 8 & 1) != 0;
      if ((is_kept && !is_there) || (is_exact && !is_kept)) {
        return Broken("the retention mask names tokens that are not there");
      }
      if (!is_kept) continue;
      composition->classes[list * layout.page_tokens + token] =
          is_exact ? TokenClass::kExact : TokenClass::kCoded;
    }
  }
  return absl::OkStatus();
}

}  // namespace

PlaneFormat Composition::FormatOf(const PartSpec& part, uint32_t layer, uint32_t head,
                                  bool value) const {
  if (formats.empty()) return value ? v : k;
  return formats[ListIndex(format_scope, part, layer, head) * kOwnFormats + (value ? 1 : 0)];
}

const TokenClass* Composition::ClassesOf(const KvLayout& layout, const PartSpec& part,
                                         uint32_t layer, uint32_t head) const {
  if (classes.empty()) return nullptr;
  return classes.data() + ListIndex(class_scope, part, layer, head) * layout.page_tokens;
}

bool Composition::Drops(const KvLayout& layout) const {
  return token_count < layout.page_tokens ||
         Has(classes, layout.page_tokens, token_count, TokenClass::kDropped);
}

void Composition::KeepRaw(const PartSpec& part, uint32_t layer, bool value) {
  const PlanScope scope = std::max(format_scope, PlanScope::kLayer);
  const uint32_t heads = scope == PlanScope::kHead ? part.head_count : 1u;
  std::vector<PlaneFormat> grown;
  for (uint32_t l = 0; l < part.layer_count; ++l) {
    for (uint32_t head = 0; head < heads; ++head) {
      for (const bool is_value : {false, true}) {
        const bool raw = l == layer && is_value == value;
        grown.push_back(raw ? PlaneFormat{} : FormatOf(part, l, head, is_value));
      }
    }
  }
  formats = std::move(grown);
  format_scope = scope;
  ShrinkFormats(part, this);
}

absl::StatusOr<Composition> Compose(const PartPlan& plan, const KvLayout& layout,
                                    const PartSpec& part, const PlaneFormat& k,
                                    const PlaneFormat& v) {
  FB_RETURN_IF_ERROR(CheckPartPlan(plan, layout, part));
  Composition composition;
  composition.token_count = plan.token_count.value_or(layout.page_tokens);
  composition.k = k;
  composition.v = ValueFormat(part, v);
  composition.class_scope = plan.class_scope;
  composition.classes = plan.classes;
  ShrinkClasses(layout, part, &composition);
  composition.format_scope = plan.format_scope;
  for (const PartPlan::Formats& formats : plan.formats) {
    // What the part does not have makes no difference.
    const bool has_k = part.stream != Stream::kValue;
    const bool has_v = part.stream != Stream::kKey;
    composition.formats.push_back(has_k ? formats.k.value_or(k) : composition.k);
    composition.formats.push_back(has_v ? ValueFormat(part, formats.v.value_or(v)) : composition.v);
  }
  ShrinkFormats(part, &composition);
  if (TableOf(composition).size() > kFormatsMax + kOwnFormats) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan of more than ", kFormatsMax, " formats"));
  }
  return composition;
}

size_t CompositionBytesMax(const Composition& composition, const KvLayout& layout,
                           const PartSpec& part) {
  size_t bytes = kHeaderBytes;
  if (!composition.classes.empty()) bytes += 2 * BitBytes(composition, part);
  if (composition.Drops(layout) || !composition.formats.empty()) {
    const PlanScope scope = std::max(composition.format_scope, PlanScope::kLayer);
    // The table may gain raw, and the two of the header.
    bytes += 1 + (TableOf(composition).size() + 3) * sizeof(PlaneFormat) +
             ListCount(scope, part) * kOwnFormats;
  }
  return Aligned(bytes);
}

size_t WriteComposition(const Composition& composition, const KvLayout& layout,
                        const PartSpec& part, MutableBytes payload) {
  auto* const to = reinterpret_cast<uint8_t*>(payload.data());
  Header header;
  header.absent_tokens = static_cast<uint16_t>(layout.page_tokens - composition.token_count);
  header.k = composition.k;
  header.v = composition.v;
  const auto pad = [&](size_t at) {
    std::memset(to + at, 0, Aligned(at) - at);
    return Aligned(at);
  };
  size_t at = pad(sizeof(header));
  if (!composition.formats.empty()) {
    header.sections |=
        static_cast<uint8_t>(static_cast<unsigned>(composition.format_scope) << kFormatScopeShift);
    const std::vector<PlaneFormat> table = TableOf(composition);
    to[at++] = static_cast<uint8_t>(table.size() - kOwnFormats);
    const size_t table_bytes = (table.size() - kOwnFormats) * sizeof(PlaneFormat);
    if (table_bytes > 0) std::memcpy(to + at, table.data() + kOwnFormats, table_bytes);
    at += table_bytes;
    for (const PlaneFormat& format : composition.formats) {
      const auto found = std::find(table.begin(), table.end(), format);
      to[at++] = static_cast<uint8_t>(found - table.begin());
    }
  }
  for (const TokenClass wanted : {TokenClass::kDropped, TokenClass::kExact}) {
    const bool kept = wanted == TokenClass::kDropped;
    const std::vector<TokenClass>& classes = composition.classes;
    if (!Has(classes, layout.page_tokens, composition.token_count, wanted)) continue;
    header.sections |= kept ? kHasKept : kHasExact;
    header.sections |=
        static_cast<uint8_t>(static_cast<unsigned>(composition.class_scope) << kClassScopeShift);
    std::memset(to + at, 0, BitBytes(composition, part));
    for (auto list = classes.begin(); list != classes.end(); list += layout.page_tokens) {
      for (uint32_t token = 0; token < composition.token_count; ++token) {
        if ((list[token] == wanted) == kept) continue;
        to[at + token / 8] = static_cast<uint8_t>(to[at + token / 8] | 1u << token % 8);
      }
      at += (composition.token_count + 7) / 8;
    }
  }
  std::memcpy(to, &header, sizeof(header));
  return pad(at);
}

absl::StatusOr<Composition> ReadComposition(const KvLayout& layout, const PartSpec& part,
                                            Bytes* payload) {
  if (!HasPlanes(part)) return Broken("planes of a part that has none");
  Reader reader(*payload);
  const uint8_t* const bytes = reader.Take(sizeof(Header));
  if (bytes == nullptr || !reader.SkipZeros(payload->size())) {
    return Broken(absl::StrCat("no header of planes in ", payload->size(), " bytes"));
  }
  Header header;
  std::memcpy(&header, bytes, sizeof(header));
  if (header.version != kVersion) {
    return Broken(absl::StrCat("planes of version ", header.version));
  }
  const unsigned class_scope = header.sections >> kClassScopeShift & kScopeMask;
  const unsigned format_scope = header.sections >> kFormatScopeShift & kScopeMask;
  const bool has_classes = (header.sections & (kHasKept | kHasExact)) != 0;
  if ((header.sections & ~kSectionsKnown) != 0 || header.zero != 0 || class_scope == kScopeMask ||
      format_scope == kScopeMask || (class_scope != 0 && !has_classes)) {
    return Broken(absl::StrCat("planes with sections ", header.sections));
  }
  if (header.absent_tokens >= layout.page_tokens) {
    return Broken(absl::StrCat(header.absent_tokens, " tokens absent of ", layout.page_tokens));
  }
  Composition composition;
  composition.token_count = layout.page_tokens - header.absent_tokens;
  composition.k = header.k;
  composition.v = header.v;
  for (const PlaneFormat& format : {header.k, header.v}) {
    if (absl::Status status = CheckPlaneFormat(format, part.dtype); !status.ok()) {
      return Broken(status.message());
    }
  }
  if (format_scope != 0) {
    composition.format_scope = static_cast<PlanScope>(format_scope);
    FB_RETURN_IF_ERROR(ReadMap(part, &reader, &composition));
  }
  if (has_classes) {
    composition.class_scope = static_cast<PlanScope>(class_scope);
    FB_RETURN_IF_ERROR(ReadClasses(layout, part, header.sections, &reader, &composition));
  }
  if (!reader.SkipZeros(payload->size())) return Broken("no zeros before the first plane");
  *payload = reader.left();
  return composition;
}

}  // namespace forebay
