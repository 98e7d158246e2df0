#include "libfabricshm/cuda/driver.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm::gpu {

namespace {

constexpr const char* kUsualDriver = "libcuda.so.1";
constexpr const char* kFindStep = "find the CUDA driver";

Result<std::unique_ptr<const Driver>> open_wanted() {
    // Not in programs with more rights than their user: it names code.
    const char* wanted = ::secure_getenv("FABRIC_CUDA");
    if (wanted == nullptr || *wanted == '\0') wanted = kUsualDriver;
    if (std::strcmp(wanted, "off") == 0) {
        return explain({Errc::kUnsupported, 0, kFindStep}, "FABRIC_CUDA is off");
    }
    return Driver::open(wanted);
}

// What find() found, with the words of a failure: another explain() replaces those of a thread.
struct Found {
    std::unique_ptr<const Driver> driver;
    Error error;
    std::string why;
    Found() {
        auto opened = open_wanted();
        if (opened.ok()) {
            driver = std::move(opened).value();
        } else {
            error = opened.error();
            why = reason_of(error);
        }
    }
};

}  // namespace

Result<const Driver*> Driver::find() {
    // Never destroyed: arenas that are closed at the end of the program still call it.
    static const Found& found = *new Found;
    if (found.driver == nullptr) return explain(found.error, "%s", found.why.c_str());
    return found.driver.get();
}

Result<std::unique_ptr<const Driver>> Driver::open(const char* library) {
    auto driver = std::make_unique<Driver>();
    FABRIC_TRY_VOID(driver->look_up(library));
    FABRIC_TRY_VOID(driver->start(library));
    return std::unique_ptr<const Driver>(std::move(driver));
}

Result<void> Driver::look_up(const char* library) {
    // As the quota shim and the CUDA runtime do it: all three then have one library.
    void* handle = ::dlopen(library, RTLD_LAZY | RTLD_GLOBAL);
    if (handle == nullptr) {
        const char* why = ::dlerror();
        return explain({Errc::kUnsupported, 0, kFindStep}, "no CUDA driver: %s",
                       why != nullptr ? why : library);
    }
    const char* missing = nullptr;
#define FABRIC_CUDA_LOOK_UP(member, name, parameters)                   \
    member = reinterpret_cast<decltype(member)>(::dlsym(handle, name)); \
    if (member == nullptr && missing == nullptr) missing = name;
    FABRIC_CUDA_ENTRIES(FABRIC_CUDA_LOOK_UP)
#undef FABRIC_CUDA_LOOK_UP
    // Before a missing function, which an old driver explains.
    if (driver_version != nullptr && driver_version(&version) == cuda::kSuccess &&
        version < kMinDriverVersion) {
        return explain({Errc::kVersion, 0, kFindStep},
                       "the driver %s is of CUDA %d.%d; %d.%d is needed", library, version / 1000,
                       version % 1000 / 10, kMinDriverVersion / 1000,
                       kMinDriverVersion % 1000 / 10);
    }
    if (missing != nullptr) {
        return explain({Errc::kUnsupported, 0, kFindStep}, "the driver %s has no %s", library,
                       missing);
    }
    return {};
}

Result<void> Driver::start(const char* library) {
    const Status status = init(0);
    if (status == cuda::kSuccess) {
        const Status counted = device_count(&devices);
        if (counted == cuda::kSuccess && devices > 0) return {};
        return explain({Errc::kUnsupported, 0, kFindStep}, "the driver %s has no device", library);
    }
    if (status == cuda::kNoDevice) {
        return explain({Errc::kUnsupported, 0, kFindStep}, "the driver %s has no device", library);
    }
    return explain({Errc::kUnsupported, 0, kFindStep}, "the driver %s does not start: %s", library,
                   name_of(status));
}

const char* Driver::name_of(Status status) const noexcept {
    const char* name = nullptr;
    const bool known = error_name(status, &name) == cuda::kSuccess && name != nullptr;
    return known ? name : "unknown";
}

Result<void> Driver::check(Status status, const char* step) const noexcept {
    if (status == cuda::kSuccess) return {};
    Errc code = Errc::kBroken;
    if (status == cuda::kOutOfMemory) code = Errc::kNoMemory;
    const bool unable = status == kNoBinaryForGpu || status == kUnsupportedPtx ||
                        (status >= 800 && status <= 802);  // not permitted, supported, ready
    if (unable) code = Errc::kUnsupported;
    if (status == kAlreadyRegistered) code = Errc::kExists;
    if (status >= kCaptureFirst && status <= kCaptureLast) {
        return explain({Errc::kInvalid, 0, step}, "%s: not while a stream is captured (%s)", step,
                       name_of(status));
    }
    return explain({code, 0, step}, "%s: %s (%d)", step, name_of(status), status);
}

}  // namespace fabricshm::gpu
