#include "fabricd/server/pin_desk.hpp"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "fabricd/server/presented_file.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::Fd;
using proto::Type;

namespace {

// A second descriptor, so that the client's own is not the last and is closed elsewhere.
Result<void> adopt(Registry& registry, SessionId session, const proto::PinPageRef& request,
                   const std::vector<Fd>& descriptors) {
    const bool harmless = descriptors.size() == 1 && is_harmless(descriptors[0], -1);
    if (!harmless) return Error{Errc::kInvalid, 0, "adopt pin page: no memory file"};
    Fd file(::fcntl(descriptors[0].get(), F_DUPFD_CLOEXEC, 0));
    if (!file) return fabricshm::error_from_errno(errno, "adopt pin page");
    return registry.pins.adopt(session, request, std::move(file));
}

}  // namespace

// Whether a reader can be kept from writing: a device has one set of rights for all of it.
std::string why_nothing_is_published(std::string_view kind, bool dax_trust_users) {
    if (kind != "dax" || dax_trust_users) return "";
    return "a DAX pool publishes no arenas, since their readers could write there "
           "(pool.dax_trust_users)";
}

bool is_about_pins(Type type) noexcept {
    return type == Type::kPinPage || type == Type::kPinPages || type == Type::kPinAdopt;
}

bool is_of_one_host(const proto::Message& request) noexcept {
    const Type type = proto::type_of(request.header);
    if (is_about_pins(type)) return true;
    constexpr std::uint32_t kOfPublished = proto::kArenaPublish | proto::kArenaSubscribe;
    return type == Type::kArenaOpen && (request.arena_open.flags & kOfPublished) != 0;
}

Packet pin_reply(Registry& registry, SessionId session, const proto::Message& request,
                 const std::vector<Fd>& descriptors) {
    Packet packet{proto::make_reply(request), {}, {}};
    Result<void> done;
    if (proto::type_of(request.header) == Type::kPinPage) {
        auto page = registry.pins.page(session, request.pin_page);
        done = page.ok() ? Result<void>() : page.error();
        if (page.ok()) packet.message.pin_page = page->page;
        if (page.ok()) packet.page = std::move(page->descriptor);
    } else if (proto::type_of(request.header) == Type::kPinPages) {
        const auto pages = registry.pins.list(session, request.pin_pages);
        done = pages.ok() ? Result<void>() : pages.error();
        if (pages.ok()) packet.message.pin_pages = *pages;
    } else {
        done = adopt(registry, session, request.pin_page, descriptors);
    }
    if (!done.ok()) packet.message = proto::make_error_reply(request.header, done.error());
    return packet;
}

}  // namespace fabricd
