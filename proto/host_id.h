#pragma once

#include <string>

namespace forebay {

// Names the kernel that this process runs on: equal for processes that could share memory.
//
// It is the kernel's boot id alone. Mount, network and user namespaces are left out on purpose: a
// socket that is mounted into a container works there, and one that is not fails at once, so that a
// client goes on to the next address. A cloned machine with the same boot id is caught by the boot
// epoch in Hello.
//
// Errors   empty where the kernel does not tell: equal to nothing, so no local path is tried.
// Threads  any; read once.
const std::string& OwnHostId();

// True when both are known and equal.
bool SameHost(const std::string& a, const std::string& b);

}  // namespace forebay
