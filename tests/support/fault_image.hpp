// What the daemon's journal says at this moment, and what is wrong with it.

#pragma once

#include <string>
#include <vector>

#include "fabricd/pool/image.hpp"
#include "tests/support/fault_job.hpp"

namespace test_support {

/// Replays a copy of the journal in `state_dir`. Nothing when there is none yet, or when it
/// contradicts itself: then `problem` says so.
fabricd::PoolImage pool_image_in(const std::string& state_dir, std::string& problem);

/// Bytes of an arena with two owners, and claims of ranks that the image do not know or know
/// otherwise. Empty when all is well.
std::vector<std::string> two_owners(const fabricd::PoolImage& image,
                                    const std::vector<JobClaim>& claims);

}  // namespace test_support
