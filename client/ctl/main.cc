#include <iostream>
#include <string>
#include <vector>

#include "client/ctl/subcommand.h"

int main(int argc, char** argv) {
  return forebay::ctl::Run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
}
