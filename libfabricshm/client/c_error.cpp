#include "libfabricshm/client/c_error.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "libfabricshm/base/c_names.hpp"
#include "libfabricshm/base/late_rank.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/version.hpp"
#include "libfabricshm/include/fabricshm/fabricshm.h"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// Of fixed sizes: longer texts are cut, and never refused.
struct LastFailure {
    char text[512] = "";
    int rank = -1;
    std::uint64_t region = 0;
};

thread_local LastFailure t_last;

// A code that is added on one side only does not compile.
static_assert(std::size(kCodeNames) == -FABRICSHM_ECHANGED + 1);
static_assert(static_cast<int>(Errc::kChanged) == -FABRICSHM_ECHANGED &&
              static_cast<int>(Errc::kPoisoned) == -FABRICSHM_EPOISONED &&
              static_cast<int>(Errc::kPeer) == -FABRICSHM_EPEER &&
              static_cast<int>(Errc::kBroken) == -FABRICSHM_EBROKEN);

// Without describe(), which allocates: this also reports that memory ran out.
void keep(const Error& error, const char* what) noexcept {
    // `detail` means something else for each code.
    const bool names_rank =
        error.code == Errc::kPeer || error.code == Errc::kMismatch || late_rank_of(error) >= 0;
    const bool names_region = error.code == Errc::kPoisoned && error.detail > 0;
    char extra[96] = "";
    if (names_rank && error.detail >= 0) {
        std::snprintf(extra, sizeof extra, " (rank %d)", error.detail);
    } else if (names_region) {
        std::snprintf(extra, sizeof extra, " (region %d)", error.detail);
    } else if (error.code == Errc::kSystem) {
        // Null for a number that this C library has no words for.
        const char* words = ::strerrordesc_np(error.detail);
        if (words != nullptr) std::snprintf(extra, sizeof extra, " (%s)", words);
        if (words == nullptr) std::snprintf(extra, sizeof extra, " (errno %d)", error.detail);
    }
    const char* reason = reason_of(error);
    const bool has_step = error.step != nullptr && *error.step != '\0';
    std::snprintf(t_last.text, sizeof t_last.text, "%s: %s%s%s%s", what, has_step ? error.step : "",
                  has_step ? ": " : "", *reason != '\0' ? reason : text_of(error.code), extra);
    t_last.rank = names_rank ? error.detail : -1;
    t_last.region = names_region ? static_cast<std::uint64_t>(error.detail) : 0;
}

}  // namespace

int fail(const Error& error, const char* what, ...) noexcept {
    char name[256];
    va_list arguments;
    va_start(arguments, what);
    std::vsnprintf(name, sizeof name, what, arguments);
    va_end(arguments);
    keep(error, name);
    return -static_cast<int>(error.code);
}

int refuse(const char* format, ...) noexcept {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    keep({Errc::kInvalid, 0, ""}, text);
    return FABRICSHM_EINVAL;
}

int check_struct_size(const char* name, const void* given, std::size_t given_size,
                      std::size_t known) {
    if (given_size < known) {
        return refuse("%s->struct_size is %zu, less than %zu", name, given_size, known);
    }
    // A field of a newer caller that asks for nothing is all zeros.
    const auto* bytes = static_cast<const unsigned char*>(given);
    for (std::size_t i = known; i < given_size; ++i) {
        if (bytes[i] != 0) {
            return fail({Errc::kUnsupported, 0, ""}, "%s has a field that this library lacks",
                        name);
        }
    }
    return FABRICSHM_OK;
}

int check_name(const char* function, const char* name) {
    if (name == nullptr) return refuse("%s: name is NULL", function);
    char field[proto::kNameBytes];
    const std::size_t length = ::strnlen(name, proto::kNameBytes);
    if (proto::set_name(field, {name, length}, "name").ok()) return FABRICSHM_OK;
    return refuse("%s: name has to be 1 to %d printable ASCII characters", function,
                  FABRICSHM_NAME_MAX - 1);
}

}  // namespace fabricshm

extern "C" {

const char* fabricshm_error_name(int code) {
    const bool known = code <= FABRICSHM_OK && code >= FABRICSHM_ECHANGED;
    return known ? fabricshm::kCodeNames[-code] : "FABRICSHM_E?";
}

const char* fabricshm_error_text(void) {
    return fabricshm::t_last.text;
}

int fabricshm_error_rank(void) {
    return fabricshm::t_last.rank;
}

uint64_t fabricshm_error_region(void) {
    return fabricshm::t_last.region;
}

const char* fabricshm_version(void) {
    return FABRIC_VERSION;
}

}  // extern "C"
