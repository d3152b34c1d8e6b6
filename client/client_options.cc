#include "client/client_options.h"

#include "absl/strings/str_cat.h"

namespace forebay {

absl::string_view PathName(PathChoice path) {
  switch (path) {
    case PathChoice::kAuto:
      return "auto";
    case PathChoice::kLocal:
      return "local";
    case PathChoice::kTcp:
      return "tcp";
    case PathChoice::kUcx:
      return "ucx";
  }
  return "unknown";
}

absl::StatusOr<PathChoice> ParsePath(absl::string_view name) {
  for (PathChoice path :
       {PathChoice::kAuto, PathChoice::kLocal, PathChoice::kTcp, PathChoice::kUcx}) {
    if (PathName(path) == name) return path;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no path is named \"", name, "\"; known: auto, local, tcp, ucx"));
}

}  // namespace forebay
