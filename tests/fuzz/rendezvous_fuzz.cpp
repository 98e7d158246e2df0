// What rank 0 of a PyTorch process group publishes, from a store that others write to.

#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/torch/invitation.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm::torch_backend;

namespace {

bool has_control(const std::string& text, bool but_line_ends) {
    return std::any_of(text.begin(), text.end(), [&](char letter) {
        const auto code = static_cast<unsigned char>(letter);
        return (code < 0x20 || code == 0x7f) && !(but_line_ends && letter == '\n');
    });
}

void run(fuzz::Data data) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(data.data());
    const std::string_view line(reinterpret_cast<const char*>(data.data()), data.size());
    if (const auto identity = fabricshm::decode_identity(line)) {
        FUZZ_REQUIRE(!has_control(identity->host.name + identity->daemon.place, false));
        FUZZ_REQUIRE(fabricshm::decode_identity(encode_identity(*identity)) == identity);
    }
    const auto read = decode_invitation({first, data.size()});
    if (!read) return;
    for (const auto* field :
         {&read->host, &read->daemon, &read->memory, &read->arena, &read->group}) {
        FUZZ_REQUIRE(!has_control(*field, false));
    }
    FUZZ_REQUIRE(!has_control(read->error, true));
    FUZZ_REQUIRE(decode_invitation(encode_invitation(*read)) == read);
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> made;
    for (const char* error : {"", "no daemon\nanywhere"}) {
        const auto bytes =
            encode_invitation({"boot", "pid 1", "0 0:1 2", "torch-1", "pg-1", error});
        const auto all = std::as_bytes(std::span(bytes));
        made.emplace_back(all.begin(), all.end());
    }
    fabricshm::Identity identity;
    identity.host = {1, 2, 3, "host"};
    identity.daemon.place = "/run/fabricd/attach.sock (pid 1)";
    made.push_back(fuzz::buffer_of(fabricshm::encode_identity(identity)));
    return made;
}

const fuzz::Registered kTarget({"rendezvous", run, seeds});

}  // namespace
