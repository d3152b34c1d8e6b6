#include <iostream>
#include <string>
#include <vector>

#include "base/log.h"
#include "client/ctl/subcommand.h"

int main(int argc, char** argv) {
  // What a client does is no news to whoever asked for one answer.
  forebay::SetLogLevel(forebay::LogLevel::kWarning);
  return forebay::ctl::Run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
}
