// SPDX-License-Identifier: MIT OR GPL-2.0
// Stands in for nvidia.ko where there is no GPU: the calls that nvidia-uvm makes when it is loaded and unloaded.
// All others are made by xtask, one per symbol that nvidia-uvm.ko leaves open; they answer NV_ERR_NOT_SUPPORTED.
#include <linux/module.h>
#include <linux/string.h>
#include "nvtypes.h"
#include "nvstatus.h"
#include "nv_uvm_types.h"

static int session;

NV_STATUS nvUvmInterfaceSessionCreate(uvmGpuSessionHandle *handle, UvmPlatformInfo *platform)
{
    // No ATS, no confidential computing.
    memset(platform, 0, sizeof(*platform));
    *handle = (uvmGpuSessionHandle)&session;
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceSessionCreate);

NV_STATUS nvUvmInterfaceSessionDestroy(uvmGpuSessionHandle handle)
{
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceSessionDestroy);

// The pair's name up to the 580 branch.
NV_STATUS nvUvmInterfaceRegisterUvmCallbacks(struct UvmOpsUvmEvents *ops)
{
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceRegisterUvmCallbacks);

void nvUvmInterfaceDeRegisterUvmOps(void)
{
}
EXPORT_SYMBOL(nvUvmInterfaceDeRegisterUvmOps);

// The pair's name since the 590 branch.
NV_STATUS nvUvmInterfaceRegisterUvmEvents(void *events)
{
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceRegisterUvmEvents);

void nvUvmInterfaceDeRegisterUvmEvents(void)
{
}
EXPORT_SYMBOL(nvUvmInterfaceDeRegisterUvmEvents);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Stands in for nvidia.ko in tests without a GPU");
