from yolo.engine.trainer import DetectionTrainer

if __name__ == "__main__":
    trainer = DetectionTrainer(overrides={"data": "./coco8", "epochs": 50, "imgsz": 640})
    trainer.train()
