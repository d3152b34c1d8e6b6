#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/tidy/source_tree.h"

// Rules over one file each. A rule takes a path and a text, so that a test can feed it a violation,
// and answers with its faults, each "path:line: what, and what to do instead".
namespace forebay::tidy {

using Faults = std::vector<std::string>;

// The arrows of DESIGN.md between folders, for every #include, those of tests too.
Faults LayeringFaults(const SourceFile& file);
// Headers of UCX, verbs, gRPC, OpenSSL, RocksDB, liburing and CUDA stay in the folders named for
// them.
Faults ThirdPartyFaults(const SourceFile& file);
// Words that may not stand in code or text, each with what to use instead.
Faults BannedWordFaults(const SourceFile& file);
// Lines to 100 columns, files to 600 lines, functions to 70.
Faults LimitFaults(const SourceFile& file);
// #pragma once in each header.
Faults HeaderFaults(const SourceFile& file);
// At most six pure virtual functions a class.
Faults InterfaceFaults(const SourceFile& file);

}  // namespace forebay::tidy
