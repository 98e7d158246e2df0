// Checks of what torch.distributed passes in.

#pragma once

#include <ATen/ATen.h>

#include <string>

namespace fabricshm::torch_backend {

/// What c10d's assert functions call with their complaint: raises it with the operation's name.
class Refuse {
  public:
    explicit Refuse(const char* operation) : operation_(operation) {}
    void operator()(const std::string& complaint) const {
        TORCH_CHECK(false, "ProcessGroupFabricshm::", operation_, ": ", complaint);
    }

  private:
    const char* operation_;
};

}  // namespace fabricshm::torch_backend
