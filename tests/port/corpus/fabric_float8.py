from lightning import Fabric

fabric = Fabric(precision="transformer-engine")
model = fabric.setup(model)
