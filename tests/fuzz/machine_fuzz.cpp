// The file of an emulated machine. What is accepted becomes a link page that every client takes,
// and a page of any bytes is refused or safe to count with.

#include "fabricd/config/machine_file.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;

namespace {

alignas(kCachePair) std::byte g_page[kLinkPageBytes];

void require_page(const LinkImage& image) {
    format_links(g_page, image);
    const auto read = read_links(g_page);
    FUZZ_REQUIRE(read.ok());
    FUZZ_REQUIRE(std::memcmp(&*read, &image, sizeof image) == 0);
    FUZZ_REQUIRE(!emu::describe_links(*read).empty());
}

void run(fuzz::Data input) {
    emu::EmulatedMachine machine;
    const auto bad = fabricd::read_machine(fuzz::Input::text_of(input), "m.toml", machine);
    if (bad) {
        FUZZ_REQUIRE(bad->starts_with("m.toml"));
        return;
    }
    LinkImage image{};
    FUZZ_REQUIRE(!emu::resolve(machine, image));
    FUZZ_REQUIRE(check_links(image).ok());
    require_page(image);
}

std::vector<fuzz::Buffer> seeds() {
    const std::string small =
        "nodes = ['host']\n[[device]]\nname = 'box'\n"
        "[[link]]\nname = 'port'\nfrom = 'host'\nto = 'box'\n";
    return {fuzz::buffer_of(small),
            fuzz::buffer_of("name = 'tiny'\nsource = 'seed'\ncoherent = false\n" + small +
                            "latency = '1us'\nwrite_latency = '2us'\nbandwidth = '500 MB/s'\n"
                            "read_bandwidth = '1.5GB/s'\nhalf_duplex = true\nknee_ranks = 3\n"
                            "knee_loss = '2.5%'\n"),
            fuzz::buffer_of("nodes = ['a', 'b']\n[[device]]\nname = 'box0'\nlatency = '120ns'\n"
                            "[[device]]\nname = 'box1'\nbandwidth = '24GB/s'\n"
                            "[[link]]\nname = 'p0'\nfrom = 'a'\nto = 'switch'\n"
                            "[[link]]\nname = 'p1'\nfrom = 'b'\nto = 'switch'\n"
                            "[[link]]\nname = 'd0'\nfrom = 'switch'\nto = 'box0'\n"
                            "[[link]]\nname = 'd1'\nfrom = 'switch'\nto = 'box1'\n")};
}

const fuzz::Registered kTarget({"machine", run, seeds});

}  // namespace
