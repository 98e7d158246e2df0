// Finding: what one check of `fabricctl doctor` says.

#pragma once

#include <string>

namespace fabricd {

/// How grave it is. A check that could not be made is unknown: it is no finding against the host,
/// and no proof that all is well.
enum class Grade {
    kOk,
    kNote,     // works; may be better, or is worth knowing
    kUnknown,  // could not be checked
    kWarning,  // works, and is slow or breaks under load
    kProblem,  // does not work
};

struct Finding {
    Grade grade = Grade::kOk;
    std::string text;          // one line, with figures and units
    std::string command = "";  // what mends it, for a shell; "": no command does
};

inline Finding unknown(std::string text) {
    return {Grade::kUnknown, std::move(text)};
}

}  // namespace fabricd
