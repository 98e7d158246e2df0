/* The C header alone, as C11 with every warning: it compiles or the build fails. */
#include <fabricshm/cuda.h>
#include <fabricshm/data.h>
#include <fabricshm/fabricshm.h>
#include <fabricshm/optim.h>
#include <fabricshm/shard.h>
#include <fabricshm/symmetric.h>

_Static_assert(FABRICSHM_OK == 0, "success is 0");
_Static_assert(sizeof(fabricshm_session_options) == 40, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_launch) == 40, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_host) == 128, "it has room to grow: reserved");
_Static_assert(sizeof(fabricshm_cluster) == 16, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_hosts_spec) == 56, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_call) == 96, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_step_info) == 64, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_directive) == 3112, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_quota) == 80, "grow at the end; raise the minor version");

_Static_assert(sizeof(fabricshm_cuda_options) == 24, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_cuda_step) == 112, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_shard_view) == 104, "fabricshm_shard_view");
_Static_assert(sizeof(fabricshm_parameter) == 24, "fabricshm_parameter");
_Static_assert(sizeof(fabricshm_parameters_spec) == 48, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_parameter_memory) == 56, "fabricshm_parameter_memory");
_Static_assert(sizeof(fabricshm_hyper) == 64, "fabricshm_hyper");
_Static_assert(sizeof(fabricshm_step_call) == 64, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_step_report) == 48, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_symmetric_call) == 64, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_symmetric_report) == 48,
               "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_snapshot_call) == 40, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_snapshot_report) == 48, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_data_entry) == 88, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_data_view) == 24, "fabricshm_data_view");
_Static_assert(sizeof(fabricshm_data_plan) == 56, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_data_stats) == 64, "grow at the end; raise the minor version");
