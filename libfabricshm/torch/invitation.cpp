#include "libfabricshm/torch/invitation.hpp"

#include <algorithm>
#include <string_view>

namespace fabricshm::torch_backend {

namespace {

constexpr std::string_view kHeading = "fabricshm invitation 1";
constexpr std::size_t kMaxBytes = 64 * 1024;

// In this order, a line each. The error comes after them, since it may have line ends.
constexpr std::string Invitation::*kLines[] = {&Invitation::host, &Invitation::daemon,
                                               &Invitation::memory, &Invitation::arena,
                                               &Invitation::group};

bool is_control(char letter) {
    const auto code = static_cast<unsigned char>(letter);
    return code < 0x20 || code == 0x7f;
}

std::string in_one_line(std::string text) {
    std::ranges::replace_if(text, is_control, ' ');
    return text;
}

// Up to the line's end, which is taken, too. Nothing: there is none.
std::optional<std::string_view> take_line(std::string_view& text) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    return line;
}

}  // namespace

std::vector<std::uint8_t> encode_invitation(const Invitation& invitation) {
    std::string text(kHeading);
    text += '\n';
    for (const auto field : kLines) text += in_one_line(invitation.*field) + '\n';
    text += invitation.error;
    text.resize(std::min(text.size(), kMaxBytes));
    return {text.begin(), text.end()};
}

std::optional<Invitation> decode_invitation(std::span<const std::uint8_t> bytes) {
    if (bytes.size() > kMaxBytes) return std::nullopt;
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (take_line(text) != kHeading) return std::nullopt;
    Invitation invitation;
    for (const auto field : kLines) {
        const auto line = take_line(text);
        if (!line || std::ranges::any_of(*line, is_control)) return std::nullopt;
        invitation.*field = *line;
    }
    invitation.error = text;
    std::ranges::replace_if(
        invitation.error, [](char letter) { return letter != '\n' && is_control(letter); }, '?');
    return invitation;
}

}  // namespace fabricshm::torch_backend
