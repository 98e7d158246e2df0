// The queues in which messages and receives wait for each other. Internal to the mailbox.

#pragma once

#include <cstdint>
#include <unordered_map>

#include "libfabricshm/base/check.hpp"

namespace fabricshm {

template <typename Node>
struct Link {
    Node* before = nullptr;
    Node* after = nullptr;
};

/// A list through `kLink` of its nodes, which it does not own. Nothing is allocated.
template <typename Node, Link<Node> Node::*kLink>
class Chain {
  public:
    bool empty() const noexcept { return front_ == nullptr; }
    Node* front() const noexcept { return front_; }
    static Node* after(const Node& node) noexcept { return (node.*kLink).after; }

    void push_back(Node& node) noexcept {
        FABRIC_DCHECK((node.*kLink).before == nullptr && (node.*kLink).after == nullptr);
        node.*kLink = {back_, nullptr};
        (back_ != nullptr ? (back_->*kLink).after : front_) = &node;
        back_ = &node;
    }
    void erase(Node& node) noexcept {
        const Link<Node> link = node.*kLink;
        // It is in this chain: both neighbours, or the ends, know it.
        FABRIC_DCHECK((link.before != nullptr ? (link.before->*kLink).after : front_) == &node);
        FABRIC_DCHECK((link.after != nullptr ? (link.after->*kLink).before : back_) == &node);
        (link.before != nullptr ? (link.before->*kLink).after : front_) = link.after;
        (link.after != nullptr ? (link.after->*kLink).before : back_) = link.before;
        node.*kLink = {};
    }

  private:
    Node* front_ = nullptr;
    Node* back_ = nullptr;
};

/// Nodes by peer and tag, those of one pair in the order added. Constant time for each call.
template <typename Node, Link<Node> Node::*kLink>
class MatchIndex {
  public:
    void add(int peer, int tag, Node& node) { chains_[key(peer, tag)].push_back(node); }
    /// The node was added under this peer and tag.
    void erase(int peer, int tag, Node& node) noexcept {
        const auto chain = chains_.find(key(peer, tag));
        FABRIC_DCHECK(chain != chains_.end());
        chain->second.erase(node);
        if (chain->second.empty()) chains_.erase(chain);
    }
    /// The oldest; nullptr when there is none.
    Node* first(int peer, int tag) const noexcept {
        if (chains_.empty()) return nullptr;
        const auto chain = chains_.find(key(peer, tag));
        return chain == chains_.end() ? nullptr : chain->second.front();
    }

  private:
    static std::uint64_t key(int peer, int tag) noexcept {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 |
               static_cast<std::uint32_t>(tag);
    }
    std::unordered_map<std::uint64_t, Chain<Node, kLink>> chains_;
};

}  // namespace fabricshm
