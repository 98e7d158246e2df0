#include "libfabricshm/net/transport_loader.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm::net {

namespace {

constexpr const char* kLibrary = "libfabricshm_net.so";

std::vector<std::string> places() {
    std::vector<std::string> found;
    // Not in programs with more rights than their user: it names code.
    const char* set = ::secure_getenv("FABRIC_NET_LIBRARY");
    if (set != nullptr && *set != '\0') {
        return {set};
    }
    Dl_info here{};
    if (::dladdr(reinterpret_cast<const void*>(&open_transport), &here) != 0 &&
        here.dli_fname != nullptr) {
        const std::string file = here.dli_fname;
        found.push_back(file.substr(0, file.rfind('/') + 1) + kLibrary);
    }
    found.emplace_back(kLibrary);
    return found;
}

}  // namespace

Result<std::unique_ptr<Transport>> open_transport(const TransportSpec& spec) {
    void* library = nullptr;
    for (const std::string& place : places()) {
        library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library != nullptr) break;
    }
    if (library == nullptr) {
        const char* why = ::dlerror();
        return explain({Errc::kUnsupported, 0, "load libfabricshm_net.so"}, "%s",
                       why == nullptr ? "not found" : why);
    }
    const auto factory = reinterpret_cast<TransportFactory>(::dlsym(library, kTransportFactory));
    if (factory == nullptr) {
        return explain({Errc::kVersion, 0, "load libfabricshm_net.so"}, "it has no %s",
                       kTransportFactory);
    }
    TransportError error;
    std::unique_ptr<Transport> made(factory(kTransportVersion, &spec, &error));
    if (made == nullptr) return explain({error.code, 0, "network"}, "%s", error.text);
    return made;
}

}  // namespace fabricshm::net
