#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/tidy/rules.h"
#include "tests/tidy/source_tree.h"

// Rules over many files at once: names that must be unique, documented and tested, and build files.
namespace forebay::tidy {

// The names in lines "- `name`: sentence" below the heading `heading` ("## Metrics"), up to the
// next heading of the same level.
std::set<std::string> CatalogueOf(absl::string_view markdown, absl::string_view heading);

// Each failpoint of the product is named folder.noun.verb, stands in one place, is in `operations`
// (the text of docs/operations.md) and is armed by a test; and `operations` lists no other.
Faults FailpointFaults(const std::vector<SourceFile>& files, absl::string_view operations);
// Each metric of the product ("forebay_…" in a literal) is in `operations`, and no other.
Faults MetricFaults(const std::vector<SourceFile>& files, absl::string_view operations);
// Each .cc file is named by a CMakeLists.txt of its folder or of one above.
Faults UnregisteredSourceFaults(const std::vector<SourceFile>& files);
// No target of the product links GoogleTest or a target of fakes.
Faults TestingLinkFaults(const SourceFile& cmake_file);
// Each docs/….md that `file` cites is there; so is the target of each relative link of a page.
Faults CitationFaults(const SourceFile& file);

}  // namespace forebay::tidy
