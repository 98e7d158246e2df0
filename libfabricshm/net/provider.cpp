#include "libfabricshm/net/provider.hpp"

#include <rdma/fi_errno.h>

#include <cstdio>
#include <cstring>

namespace fabricshm::net {

namespace {

struct Preference {
    const char* provider;
    int value;
};

// What is not here is a network of its own, of which we know nothing bad.
constexpr Preference kPreferences[] = {
    {"verbs;ofi_rxm", 9}, {"tcp", 3}, {"tcp;ofi_rxm", 2}, {"net", 1}, {"net;ofi_rxm", 0},
    {"sockets", 0},       {"udp", 0}, {"udp;ofi_rxd", 0}, {"shm", 0},
};
constexpr int kUnknownNetwork = 8;

fi_info* make_hints(const std::string& wanted) {
    fi_info* hints = fi_allocinfo();
    if (hints == nullptr) return nullptr;
    hints->caps = FI_MSG | FI_RMA | FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    // Keys of our own where the provider lets us choose them; base and key are exchanged always.
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    // A word that comes with the bytes counts them: they must not overtake each other.
    hints->tx_attr->msg_order = FI_ORDER_WAW;
    hints->rx_attr->msg_order = FI_ORDER_WAW;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    if (!wanted.empty()) hints->fabric_attr->prov_name = ::strdup(wanted.c_str());
    return hints;
}

}  // namespace

int preference_of(const char* provider) noexcept {
    for (const Preference& row : kPreferences) {
        if (std::strcmp(row.provider, provider) == 0) return row.value;
    }
    return kUnknownNetwork;
}

bool uses_tcp(const char* provider) noexcept {
    return std::strncmp(provider, "tcp", 3) == 0 || std::strncmp(provider, "net", 3) == 0;
}

fi_info* choose_provider(const std::string& address, const std::string& wanted,
                         TransportError& error) {
    fi_info* hints = make_hints(wanted);
    fi_info* found = nullptr;
    // FI_SOURCE: the address is that of this side.
    const int code = hints == nullptr ? -FI_ENOMEM
                                      : fi_getinfo(FI_VERSION(1, 14), address.c_str(), nullptr,
                                                   FI_SOURCE, hints, &found);
    if (hints != nullptr) fi_freeinfo(hints);
    fi_info* best = nullptr;
    for (fi_info* info = code == 0 ? found : nullptr; info != nullptr; info = info->next) {
        const int value = wanted.empty() ? preference_of(info->fabric_attr->prov_name) : 1;
        const int least = best == nullptr ? 0 : preference_of(best->fabric_attr->prov_name);
        const bool has_words = info->domain_attr->cq_data_size >= sizeof(std::uint32_t);
        if (has_words && value > 0 && (best == nullptr || (wanted.empty() && value > least))) {
            best = info;
        }
    }
    fi_info* chosen = best == nullptr ? nullptr : fi_dupinfo(best);
    if (found != nullptr) fi_freeinfo(found);
    if (chosen == nullptr) {
        error.code = Errc::kUnsupported;
        std::snprintf(error.text, sizeof error.text,
                      "libfabric has no provider%s%s with RDM, RMA and ordered writes at %s (%s)",
                      wanted.empty() ? "" : " ", wanted.c_str(), address.c_str(),
                      code == 0 ? "none suits" : fi_strerror(-code));
    }
    return chosen;
}

}  // namespace fabricshm::net
