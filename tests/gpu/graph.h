/* What a captured graph is made of. */
#ifndef TEGROUP_TESTS_GRAPH_H
#define TEGROUP_TESTS_GRAPH_H

#include "mirror.h"

/* How many kernels there are; 0 where there is anything but these, and the empty nodes that joins of streams may leave: a
 * copy, a memset, an allocation, a host call. */
static int only_kernels(cudaGraph_t graph) {
    size_t count = 0;
    int kernels = 0;
    MUST(cudaGraphGetNodes(graph, NULL, &count));
    cudaGraphNode_t *nodes = (cudaGraphNode_t *)malloc((count + 1) * sizeof *nodes);
    MUST(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        cudaGraphNodeType type;
        MUST(cudaGraphNodeGetType(nodes[i], &type));
        kernels += type == cudaGraphNodeTypeKernel;
        if (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeEmpty) continue;
        fprintf(stderr, "node of type %d\n", (int)type);
        kernels = 0;
        break;
    }
    free(nodes);
    return kernels;
}

#endif
